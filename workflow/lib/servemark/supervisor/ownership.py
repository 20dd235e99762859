"""Ownership: only the newest allocation works on a deployment, and only one deployment on a machine without a scheduler.

If Slurm declares a node lost, it starts the job again elsewhere, and processes on the lost node may still run and write. The newest
allocation writes its name to ``owner`` in the deployment's folder. A process that finds another name there ends and writes no record.
"""

import contextlib
import fcntl
import os
import signal
from collections.abc import Collection
from pathlib import Path

import psutil

from servemark.errors import ServemarkError
from servemark.processes import identity
from servemark.records import write_atomically

FILE = "owner"
VARIABLE = "SERVEMARK_OWNER"
CLOCKS_S = 5.0
"""Largest difference between the clocks of two nodes."""


class TakenOver(ServemarkError):
    """Another allocation owns the deployment; this one is superseded."""

    default_reason = "taken_over"


def export_name() -> None:
    """Export the name of this process's job and start number.

    The first Snakemake of a job must call this: only it has Slurm's restart count, because the executor removes that for later ones.
    """
    job = os.environ.get("SLURM_JOB_ID")
    known = os.environ.get(VARIABLE, "")
    if job is None:
        os.environ.pop(VARIABLE, None)
    elif "SLURM_RESTART_COUNT" in os.environ or known.split(",")[0] != f"job {job}":
        restarts = int(os.environ.get("SLURM_RESTART_COUNT") or 0)
        os.environ[VARIABLE] = f"job {job}" + (f", start {restarts + 1}" if restarts else "")


def mine() -> str:
    """Return this process's allocation: its job, or the owner process outside a job."""
    return os.environ.get(VARIABLE) or f"process {identity.owner_process()}"


def take(deployment: Path) -> str:
    """Become the owner of this deployment; return the name written."""
    write_atomically(deployment / FILE, mine() + "\n")
    return mine()


def owner(deployment: Path) -> str | None:
    """Return the deployment's owner; None before the first."""
    try:
        return (deployment / FILE).read_text().strip()
    except FileNotFoundError:
        return None


def taken_over(deployment: Path) -> bool:
    """Return whether another allocation owns the deployment."""
    return owner(deployment) not in (None, mine())


def check(deployment: Path) -> None:
    """Raise :class:`TakenOver` if another allocation owns the deployment."""
    if taken_over(deployment):
        raise TakenOver(
            f"Deployment {deployment.name} belongs to {owner(deployment)}; this is {mine()}, which was superseded and wrote nothing.",
            do="No action needed: the newer one continues.",
        )


def end_those_above() -> None:
    """Kill the Snakemake processes of this job above this process, outermost first. Do nothing outside a job.

    They would remove the outputs of the failed rule, which now belong to the newer allocation.
    """
    job = os.environ.get("SLURM_JOB_ID")
    if job is None:
        return
    above = []
    for process in psutil.Process().parents():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("SLURM_JOB_ID") == job and _is_snakemake(process.cmdline()):
                above.append(process.pid)
    # No pause between them: this process dies with its parents.
    for pid in reversed(above):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def snakemakes_of_jobs_over(alive: Collection[str], listed_at: float) -> list[psutil.Process]:
    """Return this user's Snakemake processes on this machine and in this checkout whose job has ended. They would overwrite newer outputs.

    Args:
        alive: ids of this user's jobs that have not ended.
        listed_at: when they were listed, seconds since 1970; processes that began later are ignored.
    """
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            words = process.cmdline()
            # Only Snakemake inside a job has this option. A main process may inherit an old job's number from its shell.
            if process.uids().real != os.getuid() or not _is_snakemake(words) or "--target-jobs" not in words:
                continue
            job = process.environ().get("SLURM_JOB_ID")
            old = process.create_time() < listed_at - CLOCKS_S
            if job and job not in alive and old and Path(process.cwd()) == Path.cwd():
                found.append(process)
    return found


def _is_snakemake(words: list[str]) -> bool:
    return words[1:3] == ["-m", "snakemake"] or any(Path(word).name == "snakemake" for word in words[:2])


class MachineLock:
    """Lock of a machine without a scheduler: one deployment at a time. Kept from :meth:`take` until this process ends."""

    def __init__(self, path: Path):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._file = open(path, "a+")  # noqa: SIM115 - stays open

    def take(self) -> str | None:
        """Take the lock; return the holder's name if another process has it."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.seek(0)
            return self._file.read().strip() or "another deployment"
        return None

    def sign(self, words: str) -> None:
        """Write the holder's name for waiting processes. On a full disk the lock works without it."""
        with contextlib.suppress(OSError):
            self._file.truncate(0)
            self._file.seek(0)
            self._file.write(words)
            self._file.flush()
