"""Who works on a deployment: the newest allocation, and nobody else.

A scheduler that gives a node up for lost starts the deployment again elsewhere, while processes on the lost node may live on and go on
writing. The newest one names itself in ``owner`` in the deployment's folder; whoever finds another name there ends, and writes no record.
"""

from __future__ import annotations

import os
from pathlib import Path

from servemark import processes
from servemark.errors import ServemarkError
from servemark.records import write_atomically

FILE = "owner"
VARIABLE = "SERVEMARK_OWNER"


class TakenOver(ServemarkError):
    """Another allocation works on this deployment now."""

    default_reason = "taken_over"


def export_name() -> None:
    """Name the job that this process runs in, and which of its starts, for all that descends from here.

    The first Snakemake of a job does it: it still has Slurm's count of restarts, which the executor takes from those below it.
    """
    job = os.environ.get("SLURM_JOB_ID")
    known = os.environ.get(VARIABLE, "")
    if job is None:
        os.environ.pop(VARIABLE, None)
    elif "SLURM_RESTART_COUNT" in os.environ or known.split(",")[0] != f"job {job}":
        restarts = int(os.environ.get("SLURM_RESTART_COUNT") or 0)
        os.environ[VARIABLE] = f"job {job}" + (f", start {restarts + 1}" if restarts else "")


def mine() -> str:
    """Our name: the job's, or the run's process where there is no job."""
    return os.environ.get(VARIABLE) or f"process {processes.lifeline()}"


def take(deployment: Path) -> str:
    """Become the one who works on this deployment; returns our name."""
    write_atomically(deployment / FILE, mine() + "\n")
    return mine()


def owner(deployment: Path) -> str | None:
    """Who works on it."""
    try:
        return (deployment / FILE).read_text().strip()
    except FileNotFoundError:
        return None


def check(deployment: Path) -> None:
    """Raise :class:`TakenOver` if somebody else works on the deployment."""
    found = owner(deployment)
    if found is not None and found != mine():
        raise TakenOver(
            f"{deployment.name} is worked on by {found}; this is {mine()}, which was given up for lost. Nothing was written.",
            do="Nothing: the newer one goes on.",
        )
