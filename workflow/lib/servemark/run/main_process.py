"""What the main Snakemake process does around the rules: config, lock, owner process, signals, progress, summary."""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import logging
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from servemark import supervisor
from servemark.config import load as config_load
from servemark.config import options_files, paths
from servemark.config.expand import expand, points
from servemark.config.model import Config
from servemark.config.problems import Problem
from servemark.config.restarts import starts
from servemark.config.searches import searches
from servemark.deployment import attempts, how_to_use
from servemark.deployment.trials import trial_names
from servemark.display import screen
from servemark.display.display import Display
from servemark.display.queue import Queue
from servemark.display.run_state import RunState
from servemark.errors import ConfigError, ServemarkError
from servemark.files import folder_name, private, storage
from servemark.machine import git_state
from servemark.processes import identity
from servemark.records import LoadPoint, Measurement, PlannedSearch, Search, TopologyChoice, write_atomically
from servemark.run import restore, run_lock, signals, topologies
from servemark.run import scheduled as scheduled_run
from servemark.supervisor import ownership

# Snakemake walks the chain of points recursively, several frames a point, and reports an overflow as a "cyclic dependency".
_FRAMES_PER_POINT = 30
# Snakemake's graph is millions of objects that live to the end. Python looks for garbage among them after every 700 new ones.
_OBJECTS_PER_COLLECTION = 100_000


@dataclass(frozen=True)
class Experiment:
    """The validated configuration with its load points; ``executes`` in the main process of a run that runs jobs."""

    config: Config
    points: Mapping[str, tuple[LoadPoint, ...]]
    before: Mapping[tuple[str, str], str | None] = field(repr=False)
    searches: Mapping[str, tuple[PlannedSearch, ...]] = field(default_factory=dict)
    executes: bool = False
    choices: Mapping[str, TopologyChoice] = field(default_factory=dict)

    @classmethod
    def of(cls, config: Config, choices: Mapping[str, TopologyChoice] | None = None) -> Experiment:
        """Expand every deployment's points. ``choices``: of the deployments with ``topology: auto``."""
        every = {name: _in_order(config, name) for name in starts(config)}
        before = {
            (name, point.name): earlier.name if earlier else None
            for name, chain in every.items()
            for point, earlier in zip(chain, [None, *chain], strict=False)
        }
        return cls(config, every, before, {name: searches(config, name) for name in every}, choices=choices or {})

    @property
    def folder(self) -> Path:
        """The run's results."""
        return Path("results") / self.config.run

    @property
    def settings(self) -> Path:
        """The resolved configuration."""
        return self.folder / "config.json"


def _in_order(config: Config, deployment: str) -> tuple[LoadPoint, ...]:
    """Return the points; last those of loads that ended their server in an earlier run, so that they cost no other point."""
    last = set()
    for path in (Path("results") / config.run / "rejected" / deployment).glob("*-r*.json"):
        with contextlib.suppress(ServemarkError):
            record = Measurement.read(path)
            # A point that was not measured because the server had already ended has no command line.
            if record.failure and record.client_argv:
                last.add(_load(path.name))
    return tuple(sorted(points(config, deployment), key=lambda point: _load(point.name) in last))


def _load(point: str) -> str:
    """Return the name of a point, or of its rejected record, without the repetition."""
    return point.rpartition("-r")[0]


def load(
    data: Mapping[str, Any],
    sources: Sequence[os.PathLike[str]],
    *,
    is_main: bool,
    scheduled: bool = False,
    dry_run: bool = False,
    prepare: Callable[[Path], None] | None = None,
) -> Experiment:
    """Validate what Snakemake merged, and claim the checkout if this process is going to run jobs.

    A problem ends the process with its message and exit code, before Snakemake starts anything and would show a traceback.

    Args:
        scheduled: jobs go to a scheduler.
        dry_run: as Snakemake read it from command line, profile and environment.
        prepare: called with the working folder once its name is checked; may write below ``.snakemake``.
    """
    # In jobs too, because their Snakemake processes also remove files.
    logging.getLogger("snakemake.logging").addFilter(_reassures)
    gc.set_threshold(_OBJECTS_PER_COLLECTION)
    ownership.export_name()
    scheduled_run.restore_configuration()
    try:
        if found := folder_name.refusal(os.getcwdb()):
            raise ConfigError(found[0], do=found[1], reason="folder_name")
        if prepare:
            prepare(Path.cwd())

        def look(config: Config) -> list[Problem]:
            return paths.problems(config, Path("results") / config.run) if is_main else []

        checked = config_load.validate(data, [Path(source) for source in sources], scheduled_run.default_cluster(), look)
        experiment = Experiment.of(*topologies.resolved(expand(checked), Path("results") / checked.run, choose=is_main))
        if scheduled and experiment.config.cluster is None:
            raise ConfigError(
                "`cluster` is empty in the configuration, but this profile submits jobs to a cluster.",
                do="Leave `cluster` out, or name a file: --config cluster=NAME. For a run on this machine, use --profile profiles/local.",
            )
        if is_main:
            files = [Path(os.path.expanduser(path)) for _, path in options_files.named(data)]
            experiment = _claim(experiment, [*sources, *files], scheduled=scheduled, dry_run=dry_run)
        else:
            identity.ensure_owner_process()
    except (ServemarkError, OSError) as error:
        refused = error if isinstance(error, ServemarkError) else storage.refusal(error, [Path(".snakemake"), Path("results")])
        if refused is None:
            raise
        _print([refused.message()])
        sys.exit(refused.exit_code)
    longest = max(len(chain) + len(experiment.searches[name]) for name, chain in experiment.points.items())
    sys.setrecursionlimit(max(sys.getrecursionlimit(), 1000 + _FRAMES_PER_POINT * longest))
    return experiment


def _claim(experiment: Experiment, sources: Sequence[os.PathLike[str]], *, scheduled: bool, dry_run: bool) -> Experiment:
    identity.export_owner_process()
    _print(run_lock.claim(Path.cwd(), sys.argv[1:], dry_run=dry_run))
    # Registered first, so they run last.
    atexit.register(_explain_storage)
    atexit.register(storage.tidy, run_lock.release, Path.cwd())
    if not run_lock.executes(sys.argv[1:], dry_run=dry_run):
        if dry_run and (names := restore.outdated(experiment.folder, experiment.config)):
            more = "The dry run does not list all of their jobs: a run plans them again and measures what the ledger does not have."
            _print([f"Records of {', '.join(names)} do not match the configuration. {more} No action needed."])
        return experiment
    config = experiment.config
    if not scheduled and not run_lock.ends_early(sys.argv[1:]):
        scheduled_run.refuse_servers_outside_a_job(config)
    places = [Path(".snakemake"), experiment.folder, config.ledger_folder, *([] if scheduled else [private.runtime_folder()])]
    storage.require(*places, shared=[config.cache])
    _State.places, _State.shared = [*places, Path(tempfile.gettempdir())], [config.cache]
    if scheduled:
        scheduled_run.prepare(config, experiment.folder)
    # No other run is alive in this checkout, so live records and keys belong to dead deployments.
    _remove_live_records(experiment)
    atexit.register(storage.tidy, _remove_live_records, experiment)
    topologies.keep(experiment.folder, experiment.choices)
    _write_settings(experiment)
    _print(restore.make_good(experiment.folder, config))
    git_state.note(experiment.folder, git_state.look(Path.cwd(), [Path(path) for path in sources]))
    return replace(experiment, executes=True)


def _print(messages: Iterable[str]) -> None:
    for message in messages:
        print(f"servemark: {message}", file=sys.stderr)


class _State:
    """State of a started run: the folders it writes to, whether it is unfinished, and its display."""

    places: Sequence[Path] = ()
    shared: Sequence[Path] = ()
    unfinished = False
    display: Display | None = None


def _explain_storage() -> None:
    """After a failed run, print each file system that refuses writes now: Snakemake prints none, and a stage cannot log to a full disk."""
    if _State.unfinished:
        _print(refused.message() for refused in storage.probe(_State.places, shared=_State.shared))


def _remove_live_records(experiment: Experiment) -> None:
    for folder in (experiment.folder / "deployments").glob("*"):
        for record in attempts.live_records(folder):
            record.unlink(missing_ok=True)
        for attempt in attempts.every(folder):
            supervisor.remove_secrets(attempt)


def _write_settings(experiment: Experiment) -> None:
    """Write the resolved configuration, from which stages read time-outs and thresholds; unchanged content keeps its time.

    Not in a rule: downstream of a job that it runs, Snakemake does not look for changed parameters, and it stops at ``ancient()``.
    """
    path = experiment.settings
    text = json.dumps(experiment.config.model_dump(mode="json"), indent=2) + "\n"
    if not path.exists() or path.read_text() != text:
        write_atomically(path, text)


def _tells_something(record: logging.LogRecord) -> bool:
    """Drop two messages that Snakemake prints for every job."""
    return not record.getMessage().startswith(("Select jobs to execute", "Execute "))


def _reassures(record: logging.LogRecord) -> bool:
    """Add to Snakemake's message about removed files which measurements are kept."""
    text = record.getMessage()
    if text.startswith("Removing output files of failed job"):
        kept = "Measurements that are in the ledger are kept. Points that are not are measured again."
        record.msg, record.args = f"{text}\nservemark: {kept}", None
    return True


def begin(experiment: Experiment) -> None:
    """Handle signals and show progress from the start of a real run."""
    signals.install()
    scheduled_run.end_with_own_job()
    _State.unfinished = True
    # Otherwise a full disk gives a traceback for each line of Snakemake's log.
    logging.raiseExceptions = False
    logging.getLogger("snakemake.logging").addFilter(_tells_something)
    (experiment.folder / "summary.txt").unlink(missing_ok=True)
    scheduled = experiment.config.cluster is not None
    state = RunState({name: _names(experiment, name) for name in experiment.points}, at_once=scheduled)
    state.finished |= _measured_before(experiment)
    _State.display = Display(experiment.folder, state, how_to_use.check_reach, Queue.of(experiment.folder) if scheduled else None)
    signals.before_exit(_State.display.release)
    # Snakemake calls neither onsuccess nor onerror if its scheduler fails.
    atexit.register(_State.display.release)
    names, restarts = len(experiment.config.deployments), experiment.config.restarts
    each = f" with {restarts + 1} starts each" if restarts else ""
    counts = f"{names} {'deployment' if names == 1 else 'deployments'}{each}, {state.total} load points"
    more = f", {len(state.finished)} of them measured in an earlier run" if state.finished else ""
    screen.say(f"servemark: run {experiment.config.run}: {counts}{more}; results go to {experiment.folder}/")
    _State.display.start()


def _names(experiment: Experiment, deployment: str) -> tuple[str, ...]:
    """Return the names of a deployment's load points; those of trials are numbers, because their loads are not known."""
    trials = [name for one in experiment.searches[deployment] for name in trial_names(one)]
    return (*(point.name for point in experiment.points[deployment]), *trials)


def _measured_before(experiment: Experiment) -> set[tuple[str, str]]:
    """Return deployment and name of the load points that have a record, and of the trials of ended searches."""
    folders = {name: experiment.folder / "deployments" / name for name in experiment.points}
    points = ((name, point.name) for name, found in experiment.points.items() for point in found)
    ended = (
        (name, one) for name, found in experiment.searches.items() for one in found if Search.path(folders[name], one.workload).exists()
    )
    return {(name, point) for name, point in points if (folders[name] / "points" / f"{point}.json").exists()} | {
        (name, trial) for name, one in ended for trial in trial_names(one)
    }


def end(experiment: Experiment, success: bool) -> None:
    """At the end of a run: print the summary."""
    if _State.display:
        _State.display.end()
    _State.unfinished = not success
    with contextlib.suppress(FileNotFoundError):
        screen.say((experiment.folder / "summary.txt").read_text().rstrip("\n"))
    if not success:
        screen.say("servemark: the run did not complete. The messages above state what failed. Run the same command again to continue.")
