"""Run Slurm's commands within a time limit, report why one failed, and retry while the controller does not respond."""

import contextlib
import ctypes
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from pathlib import Path

from snakemake_executor_plugin_slurm_guarded.errors import GuardedError

# squeue with many jobs on a busy controller responds within a few seconds.
QUERY_S = 20.0
# sbatch itself waits for a controller that is down; longer than Slurm's usual MessageTimeout of 10 s.
SUBMIT_S = 60.0
# A controller that restarts or fails over is back within minutes.
PATIENCE_S = 600.0
PAUSE_S = 2.0
CONF_VARIABLE = "SNAKEMAKE_SLURM_GUARDED_CONF"
"""In a job: the value that SLURM_CONF had before slurm-jobstep removed it."""
RETRY_LATER = "Run the same command again when `squeue` responds here. If this is not a login node, use one, or export SLURM_CONF."
LOGIN_NODE = "Run on the cluster's login node. Load its Slurm module if it has one."
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


class Trouble(Enum):
    """Why a command failed."""

    MISSING = "missing"  # the program does not exist
    UNREACHABLE = "unreachable"  # slurmctld, slurmdbd or munged did not respond; the request may have arrived all the same
    REFUSED = "refused"  # Slurm responded with a refusal
    STOPPED = "stopped"  # the caller's stop event was set while it ran


class CommandFailed(Exception):
    """A Slurm command failed. ``said`` is the text that it printed."""

    def __init__(self, trouble: Trouble, argv: Sequence[str], said: str):
        self.trouble, self.tool, self.said = trouble, argv[0], said.strip()
        super().__init__(f"{self.tool}: {self.said.removeprefix(f'{self.tool}: ') or trouble.value}")

    @property
    def no_such_job(self) -> bool:
        """Whether the controller responded that it has no such job."""
        return self.trouble is Trouble.REFUSED and "invalid job id" in self.said.lower()

    def for_user(self, what: str, *, refused: str = "Ask the cluster's administrators.") -> GuardedError:
        """Return the error for the user: what could not be done, why, and what to do (``refused``: after a refusal)."""
        why, do = {
            Trouble.MISSING: ("this machine does not have Slurm's commands", LOGIN_NODE),
            Trouble.UNREACHABLE: ("Slurm does not respond", RETRY_LATER),
        }.get(self.trouble, ("Slurm refused it", refused))
        return GuardedError(f"{what}: {why}: {self}", do=do, reason=f"slurm_{self.trouble.value}")


# What Slurm's commands print when a daemon does not respond (slurm/src/common/slurm_errno.c, slurm_protocol_api.c, and munge's client).
_UNREACHABLE = re.compile(
    r"unable to contact slurm controller|socket timed out|connection refused|connection timed out|connection failure"
    r"|zero bytes were transmitted|slurm_receive_msg|slurm_persist_conn|transport endpoint|standby mode|no route to host"
    r"|network is unreachable|unable to establish (controller|configuration)|could not establish a configuration"
    r"|temporarily unable|resource temporarily unavailable|problem talking to the database|controller not responding"
    r"|communication shutdown failure|unspecified error|munge",
    re.IGNORECASE,
)
# What srun prints before it has started anything (slurm/src/srun/libsrun/{allocate,create_job}.c, 22.05 to 24.11).
_NOT_STARTED = re.compile(r"^srun: error: Unable to (?:confirm allocation|create step) for job .*$", re.MULTILINE)


def trouble_of(said: str) -> Trouble:
    """Return UNREACHABLE or REFUSED for the output of a failed command."""
    return Trouble.UNREACHABLE if _UNREACHABLE.search(said) else Trouble.REFUSED


def run(
    argv: Sequence[str],
    *,
    timeout_s: float = QUERY_S,
    stdin: str | None = None,
    stop: threading.Event | None = None,
    env: Mapping[str, str] | None = None,
) -> str:
    """Run a command and return its output. It dies with the calling thread, so that a killed run submits nothing more.

    Args:
        stop: when set, the command is ended.
        env: the command's environment; by default :func:`query_environment`.

    Raises:
        CommandFailed: it did not start, did not end in time, or did not succeed.
    """
    try:
        child = subprocess.Popen(
            list(argv),
            stdin=subprocess.PIPE if stdin is not None else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=dict(env) if env is not None else query_environment(),
            start_new_session=True,
            preexec_fn=_die_with_parent_alone,
        )
    except OSError as error:
        raise CommandFailed(Trouble.MISSING, argv, str(error)) from error
    deadline, ended = time.monotonic() + timeout_s, False
    try:
        while not ended:
            if stop is not None and stop.is_set():
                raise CommandFailed(Trouble.STOPPED, argv, "stopped")
            if (left := deadline - time.monotonic()) <= 0:
                raise CommandFailed(Trouble.UNREACHABLE, argv, f"no response within {timeout_s:.0f} s")
            with contextlib.suppress(subprocess.TimeoutExpired):
                out, err = child.communicate(stdin, timeout=min(left, 0.2))
                ended = True
            stdin = None  # handed over already
    finally:
        if child.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.communicate()
    if child.returncode != 0:
        said = err.strip() or out.strip() or f"ended with exit code {child.returncode}"
        raise CommandFailed(trouble_of(said), argv, said)
    return out


def _die_with_parent_alone() -> None:
    # Ctrl-C reaches all processes of the terminal. If it interrupted the command, its effect would be unknown.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def query_environment(env: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return an environment, by default ours, without the variables by which users change what Slurm's commands list."""
    leave_out = ("SQUEUE_", "SACCT_", "SCANCEL_", "SLURM_TIME_FORMAT")
    return {name: value for name, value in (os.environ if env is None else env).items() if not name.startswith(leave_out)}


def run_with_retries(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    timeout_s: float = QUERY_S,
    patience_s: float | None = None,
    waiting: Callable[[CommandFailed], object] | None = None,
) -> str:
    """Run a command, again while the controller does not respond, and return its output.

    One try takes at most ``timeout_s``. ``waiting`` is called after each try without a response.

    Raises:
        CommandFailed: it was refused, or the controller did not respond for ``patience_s`` seconds, by default :data:`PATIENCE_S`.
    """
    deadline = time.monotonic() + (PATIENCE_S if patience_s is None else patience_s)
    while True:
        try:
            return run(argv, timeout_s=timeout_s, env=env)
        except CommandFailed as error:
            if error.trouble is not Trouble.UNREACHABLE or time.monotonic() > deadline:
                raise
            if waiting:
                waiting(error)
        time.sleep(PAUSE_S)


def step_not_started(log: Path, since: int) -> bool:
    """Return whether srun started nothing because the controller did not respond, by its ``log`` from the byte ``since`` on."""
    try:
        said = log.read_bytes()[since:].decode(errors="replace")
    except OSError:
        return False
    return any(trouble_of(line) is Trouble.UNREACHABLE for line in _NOT_STARTED.findall(said))


def scancel(*, name: str | None = None, ids: Sequence[str] = (), timeout_s: float = QUERY_S) -> None:
    """Cancel our jobs of a name, or these jobs. Jobs that have ended already are no error."""
    which = [f"--user={os.getuid()}", f"--name={name}"] if name else list(ids)
    run(["scancel", "--quiet", *which], timeout_s=timeout_s)
