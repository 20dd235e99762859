"""What the main process does for endpoints that are held (``snakemake serve``): targets, turns, and what an earlier hold has left."""

from __future__ import annotations

import atexit
import re
import sys
from collections.abc import Iterable
from pathlib import Path

from servemark import supervisor
from servemark.deployment import attempts, how_to_use
from servemark.deployment.hold import STATUS
from servemark.errors import ConfigError
from servemark.files import storage

TARGET = "serve"
FOLDER = "serving"
HELD = "held.json"
# What is asked of a scheduler for one endpoint, in minutes, where neither the cluster file nor the partition allows less.
LONGEST_MIN = 24 * 60


def target(run: str, deployment: str) -> str:
    """Return the file to ask Snakemake for to hold one deployment alone."""
    return f"results/{run}/{FOLDER}/{deployment}/{HELD}"


def begin(run_folder: Path, deployments: Iterable[str], words: Iterable[str], *, scheduled: bool) -> None:
    """Call it in the main process of a run that executes jobs, before Snakemake looks at any file.

    Forgets how earlier holds ended, so that asking again serves again, and removes now and at exit what they may have left: no other
    run lives in this checkout. On one machine, where deployments take turns, ends the process with exit code 2 when several are
    asked for: the second would wait until the first is stopped.

    Args:
        words: the command line; what its targets are, Snakemake does not know yet while it parses.
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
    """Raise ConfigError when a command line asks for more than one endpoint on one machine."""
    asked = set()
    for name in words:
        if name == TARGET:
            asked |= set(deployments)
        elif found := re.search(rf"(?:^|/){re.escape(run)}/{FOLDER}/([^/]+)/{re.escape(HELD)}$", name):
            asked.add(found[1])
    if len(asked) > 1:
        each = "".join(f"\n    .venv/bin/snakemake --profile profiles/local {target(run, name)}" for name in deployments if name in asked)
        raise ConfigError(
            f"On one machine, one deployment is served at a time; these are {len(asked)}: "
            f"{', '.join(name for name in deployments if name in asked)}.",
            do=f"Ask for one of them (with the same --configfile):{each}\n  On a cluster each gets nodes of its own, and all are held.",
            reason="one_at_a_time",
        )


def _tidy(run_folder: Path) -> None:
    for folder in (run_folder / FOLDER).glob("*"):
        for token in (*attempts.tokens(folder), folder / how_to_use.NAME):
            token.unlink(missing_ok=True)
        for attempt in attempts.every(folder):
            supervisor.remove_secrets(attempt)
