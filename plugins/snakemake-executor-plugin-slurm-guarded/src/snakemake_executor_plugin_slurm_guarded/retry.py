"""Wait for a controller that does not respond: running steps go on; queries and new steps are tried again."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from snakemake_executor_plugin_slurm_guarded import commands
from snakemake_executor_plugin_slurm_guarded.commands import CommandFailed, Trouble

# A controller that restarts or fails over is back within minutes.
PATIENCE_S = 600.0
PAUSE_S = 2.0
# What srun prints before it has started anything (slurm/src/srun/libsrun/{allocate,create_job}.c, 22.05 to 24.11).
_NOT_STARTED = re.compile(r"^srun: error: Unable to (?:confirm allocation|create step) for job .*$", re.MULTILINE)


def ask(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    timeout_s: float = commands.QUERY_S,
    patience_s: float | None = None,
    waiting: Callable[[CommandFailed], object] | None = None,
) -> str:
    """Run one of Slurm's commands, again while the controller does not respond, and return its output.

    One try takes at most ``timeout_s``. ``waiting`` is called after each that had no response.

    Raises:
        CommandFailed: it refused, or the controller did not respond for ``patience_s`` seconds, by default :data:`PATIENCE_S`.
    """
    deadline = time.monotonic() + (PATIENCE_S if patience_s is None else patience_s)
    while True:
        try:
            return commands.run(argv, timeout_s=timeout_s, env=env)
        except CommandFailed as error:
            if error.trouble is not Trouble.UNREACHABLE or time.monotonic() > deadline:
                raise
            if waiting:
                waiting(error)
        time.sleep(PAUSE_S)


def not_started(log: Path, since: int) -> bool:
    """Return whether an srun, which writes to ``log`` from the byte ``since`` on, started nothing for want of the controller."""
    try:
        with open(log, "rb") as stream:
            stream.seek(since)
            said = stream.read().decode(errors="replace")
    except OSError:
        return False
    return any(commands.trouble_of(line) is Trouble.UNREACHABLE for line in _NOT_STARTED.findall(said))


def size(log: Path) -> int:
    """Return the bytes that are in a log so far."""
    return log.stat().st_size if log.exists() else 0
