"""What the main Snakemake process does before, around and after the rules: config, lock, lifeline, signals, progress, summary."""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import logging
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from servemark import supervisor
from servemark.config import load as config_load
from servemark.config import paths
from servemark.config.expand import expand, points
from servemark.config.model import Config
from servemark.config.problems import Problem
from servemark.deployment import attempts, reach
from servemark.errors import ConfigError, ServemarkError
from servemark.files import folder_name, private, storage
from servemark.machine import git_state as source_state
from servemark.processes import identity
from servemark.progress import Display
from servemark.records import LoadPoint, Measurement, write_atomically
from servemark.run import restore, run_lock, signals
from servemark.run import scheduled as scheduled_run
from servemark.supervisor import ownership

# Snakemake walks the chain of points recursively, several frames a point, and reports an overflow as a "cyclic dependency".
_FRAMES_PER_POINT = 30
# Snakemake's graph is millions of objects that live to the end. Python looks for garbage among them after every 700 new ones.
_OBJECTS_PER_COLLECTION = 100_000


@dataclass(frozen=True)
class Experiment:
    """The validated configuration with its load points, as the rules' functions see it.

    Attributes:
        executes: whether this process is the main process of a run that runs jobs.
    """

    config: Config
    points: Mapping[str, tuple[LoadPoint, ...]]
    before: Mapping[tuple[str, str], str | None] = field(repr=False)
    executes: bool = False

    @classmethod
    def of(cls, config: Config) -> Experiment:
        """Expand every deployment's points."""
        every = {name: _in_order(config, name) for name in config.deployments}
        before: dict[tuple[str, str], str | None] = {}
        for name, chain in every.items():
            names = [point.name for point in chain]
            before |= {(name, point): earlier for point, earlier in zip(names, [None, *names], strict=False)}
        return cls(config, every, before)

    @property
    def folder(self) -> Path:
        """The run's results."""
        return Path("results") / self.config.run

    @property
    def settings(self) -> Path:
        """The whole configuration as it is used, sweeps applied."""
        return self.folder / "config.json"


def _in_order(config: Config, deployment: str) -> tuple[LoadPoint, ...]:
    last = _loads_that_ended_a_server(config.run, deployment)
    return tuple(sorted(points(config, deployment), key=lambda point: _load(point.name) in last))


def _load(point: str) -> str:
    """Return the name of a point, or of its rejected record, without the repetition."""
    return point.rpartition("-r")[0]


def _loads_that_ended_a_server(run: str, deployment: str) -> set[str]:
    """Return the loads of which a rejected measurement ended its server. Their points go last and cost no other point."""
    found = set()
    for path in (Path("results") / run / "rejected" / deployment).glob("*-r*.json"):
        with contextlib.suppress(ServemarkError):
            record = Measurement.read(path)
            # A point that was not measured because the server had gone already has no command line.
            if record.failure and record.client_argv:
                found.add(_load(path.name))
    return found


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

    Args:
        scheduled: jobs go to a scheduler.
        dry_run: as Snakemake has read it from command line, profile and environment.
        prepare: called with the working folder once its name is checked; may write below ``.snakemake``.

    A problem ends the process with its message and exit code 2, before Snakemake starts anything: it would show a traceback
    and exit with 1.
    """
    # In the jobs too: their Snakemakes remove files, and write the logs that a failure sends users to.
    logging.getLogger("snakemake.logging").addFilter(_reassures)
    gc.set_threshold(_OBJECTS_PER_COLLECTION)
    ownership.export_name()
    scheduled_run.restore_configuration()
    try:
        if found := folder_name.refusal(os.getcwdb()):
            raise ConfigError(found[0], do=found[1], reason="folder_name")
        if prepare:
            prepare(Path.cwd())
        site = scheduled_run.default_cluster()

        def look(config: Config) -> list[Problem]:
            return paths.problems(config, Path("results") / config.run) if is_main else []

        checked = config_load.validate(data, [Path(source) for source in sources], site, look)
        experiment = Experiment.of(expand(checked))
        if scheduled and experiment.config.cluster is None:
            raise ConfigError(
                "The configuration says that there is no cluster (`cluster` is empty), and this profile sends jobs to one.",
                do="Leave `cluster` out, or name a file: --config cluster=NAME. For a run on this machine take --profile profiles/local.",
            )
        if is_main:
            identity.export_lifeline()
            for message in run_lock.claim(Path.cwd(), sys.argv[1:], dry_run=dry_run):
                print(f"servemark: {message}", file=sys.stderr)
            # The last to run.
            atexit.register(_explain_storage)
            atexit.register(storage.tidy, run_lock.release, Path.cwd())
            if run_lock.executes(sys.argv[1:], dry_run=dry_run):
                experiment = replace(experiment, executes=True)
                _require_storage(experiment, scheduled=scheduled)
                if scheduled:
                    scheduled_run.prepare(experiment.config, experiment.folder)
                # No other run lives here, so tokens and keys that are there are those of dead deployments.
                _remove_tokens(experiment)
                atexit.register(storage.tidy, _remove_tokens, experiment)
                _write_settings(experiment)
                for message in restore.make_good(experiment.folder, experiment.config):
                    print(f"servemark: {message}", file=sys.stderr)
                source_state.note(experiment.folder, source_state.look(Path.cwd(), [Path(path) for path in sources]))
        else:
            identity.ensure_lifeline()
    except ServemarkError as error:
        print(f"servemark: {error.message()}", file=sys.stderr)
        sys.exit(error.exit_code)
    except OSError as error:
        refused = storage.refusal(error, [Path(".snakemake"), Path("results")])
        if refused is None:
            raise
        print(f"servemark: {refused.message()}", file=sys.stderr)
        sys.exit(refused.exit_code)
    longest = max(map(len, experiment.points.values()))
    sys.setrecursionlimit(max(sys.getrecursionlimit(), 1000 + _FRAMES_PER_POINT * longest))
    return experiment


def _require_storage(experiment: Experiment, *, scheduled: bool) -> None:
    """Refuse a run whose first writes would fail.

    Raises:
        StorageRefused: names every file system that refuses.
    """
    config = experiment.config
    places = [Path(".snakemake"), experiment.folder, config.ledger_folder]
    if not scheduled:
        places.append(private.runtime_folder())
    if found := storage.probe(places, shared=[config.cache]):
        raise storage.together(found)
    _Storage.places = [*places, Path(tempfile.gettempdir())]
    _Storage.shared = [config.cache]


class _Storage:
    """Where a run writes that has begun and not ended well."""

    places: Sequence[Path] = ()
    shared: Sequence[Path] = ()
    unfinished = False


def _explain_storage() -> None:
    """After a run that failed, name each file system that refuses now: Snakemake names none, and a stage cannot write to a full one."""
    if _Storage.unfinished:
        for refused in storage.probe(_Storage.places, shared=_Storage.shared):
            print(f"servemark: {refused.message()}", file=sys.stderr)


def _remove_tokens(experiment: Experiment) -> None:
    for folder in (experiment.folder / "deployments").glob("*"):
        for token in attempts.tokens(folder):
            token.unlink(missing_ok=True)
        for attempt in attempts.every(folder):
            supervisor.remove_secrets(attempt)


def _write_settings(experiment: Experiment) -> None:
    """Write the resolved configuration, which stages read waits, thresholds and places from; unchanged content keeps its time.

    Here and not in a rule: Snakemake does not look for changed parameters downstream of a job that it runs, and stops running
    what is downstream at ``ancient()``. A rule that follows every change of the configuration would hide all the others.
    """
    path = experiment.settings
    text = json.dumps(experiment.config.model_dump(mode="json"), indent=2) + "\n"
    if not path.exists() or path.read_text() != text:
        write_atomically(path, text)


class _Shown:
    display: Display | None = None


def _tells_something(record: logging.LogRecord) -> bool:
    """Snakemake says these two for every job; no setting of its own drops them and keeps the rest."""
    return not record.getMessage().startswith(("Select jobs to execute", "Execute "))


def _reassures(record: logging.LogRecord) -> bool:
    """Add to Snakemake's message about removed files which measurements are kept."""
    said = record.getMessage()
    if said.startswith("Removing output files of failed job"):
        record.msg, record.args = f"{said}\nservemark: {_SAFE}", None
    return True


_SAFE = "Measurements that are in the ledger are kept. Points that are not are measured again."


def begin(experiment: Experiment) -> None:
    """At the start of a real run: answer signals in bounded time and show progress."""
    signals.install()
    _Storage.unfinished = True
    # Else a full disk gives a traceback for each line that Snakemake cannot write to its log.
    logging.raiseExceptions = False
    scheduled_run.end_before_own_job()
    logging.getLogger("snakemake.logging").addFilter(_tells_something)
    # An earlier run's summary is not this one's.
    (experiment.folder / "summary.txt").unlink(missing_ok=True)
    _Shown.display = Display(experiment.folder / "progress.jsonl", check=reach.check)
    _Shown.display.start()
    counts = f"{len(experiment.points)} deployments, {sum(map(len, experiment.points.values()))} load points"
    print(f"servemark: run {experiment.config.run}: {counts}; results go to {experiment.folder}/", file=sys.stderr)


def end(experiment: Experiment, success: bool) -> None:
    """At the end of a run: the table's main lines and where everything is."""
    if _Shown.display:
        _Shown.display.end()
    _Storage.unfinished = not success
    summary = experiment.folder / "summary.txt"
    with contextlib.suppress(FileNotFoundError):
        print(summary.read_text(), file=sys.stderr)
    if not success:
        print(
            "servemark: the run did not complete. What failed is said above; run the same command again to go on.",
            file=sys.stderr,
        )
