"""Patience, inside a job, with a controller that is away: what runs goes on, and what is newly asked or started waits."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from servemark.slurm import commands
from servemark.slurm.commands import CommandFailed, Trouble

# A controller that restarts or fails over is back within minutes.
PATIENCE_S = 600.0
PAUSE_S = 2.0
# srun's words before it has started anything (slurm/src/srun/libsrun/{allocate,create_job}.c, 22.05 to 24.11).
_NOT_STARTED = re.compile(r"^srun: error: Unable to (?:confirm allocation|create step) for job .*$", re.MULTILINE)


def ask(argv: Sequence[str], *, env: Mapping[str, str], timeout_s: float) -> str:
    """Run one of Slurm's tools, again and again while its controller is away, and give what it printed.

    Raises:
        CommandFailed: it refused, or the controller was away for :data:`PATIENCE_S`.
    """
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return commands.run(argv, timeout_s=timeout_s, env=env)
        except CommandFailed as error:
            if error.trouble is not Trouble.UNREACHABLE or time.monotonic() > deadline:
                raise
        time.sleep(PAUSE_S)


def not_started(log: Path, since: int) -> bool:
    """Whether what an srun wrote to ``log`` from byte ``since`` on says that it started nothing, because the controller was away."""
    try:
        with open(log, "rb") as stream:
            stream.seek(since)
            said = stream.read().decode(errors="replace")
    except OSError:
        return False
    return any(commands.trouble_of(line) is Trouble.UNREACHABLE for line in _NOT_STARTED.findall(said))


def size(log: Path) -> int:
    """Bytes that are in a log so far."""
    return log.stat().st_size if log.exists() else 0
