"""``snakemake serve`` in the main process: targets, one endpoint per machine, and leftovers of earlier endpoints."""

import atexit
import re
import sys
from collections.abc import Iterable
from pathlib import Path

from servemark import supervisor
from servemark.deployment import attempts, how_to_use
from servemark.deployment.how_to_use import STATUS
from servemark.errors import ConfigError
from servemark.files import storage

TARGET = "serve"
FOLDER = "serving"
HELD = "held.json"
# Time limit of an endpoint's job, minutes, unless the cluster file or the partition allows less.
LONGEST_MIN = 24 * 60


def target(run: str, deployment: str) -> str:
    """Return Snakemake's target for serving only one deployment."""
    return f"results/{run}/{FOLDER}/{deployment}/{HELD}"


def begin(run_folder: Path, deployments: Iterable[str], words: Iterable[str], *, scheduled: bool) -> None:
    """Delete the records of earlier endpoints' ends, so that the same target serves again, and their leftovers, now and at exit.

    Call it in the main process of a run that executes jobs, before Snakemake checks any file. On one machine, several endpoints in
    ``words``, the command line, end the process with exit code 2: the second would wait until the first stops.
    """
    try:
        if not scheduled:
            refuse_several(run_folder.name, list(deployments), words)
    except ConfigError as error:
        print(f"servemark: {error.message()}", file=sys.stderr)
        sys.exit(error.exit_code)
    for folder in (run_folder / FOLDER).glob("*"):
        for name in (HELD, STATUS):
            (folder / name).unlink(missing_ok=True)
    _tidy(run_folder)
    atexit.register(storage.tidy, _tidy, run_folder)


def refuse_several(run: str, deployments: list[str], words: Iterable[str]) -> None:
    """Raise ConfigError if a command line requests more than one endpoint."""
    requested = set()
    for name in words:
        if name == TARGET:
            requested |= set(deployments)
        elif found := re.search(rf"(?:^|/){re.escape(run)}/{FOLDER}/([^/]+)/{re.escape(HELD)}$", name):
            requested.add(found[1])
    chosen = [name for name in deployments if name in requested]
    if len(requested) > 1:
        each = "".join(f"\n    .venv/bin/snakemake --profile profiles/local {target(run, name)}" for name in chosen)
        raise ConfigError(
            f"On one machine, servemark serves one deployment at a time; the command requests {len(requested)}: {', '.join(chosen)}.",
            do=f"Request one of them (with the same --configfile):{each}\n  On a cluster, each has its own nodes and servemark serves all.",
            reason="one_at_a_time",
        )


def _tidy(run_folder: Path) -> None:
    for folder in (run_folder / FOLDER).glob("*"):
        for path in (*attempts.live_records(folder), folder / how_to_use.NAME):
            path.unlink(missing_ok=True)
        for attempt in attempts.every(folder):
            supervisor.remove_secrets(attempt)
