"""Slurm's tools: run with a time limit, and told what it means when one gives no answer."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from enum import Enum

from servemark.processes.identity import die_with_parent

# squeue with many jobs on a busy controller answers within a few seconds; beyond this it is treated as not answering.
QUERY_S = 20.0
# Before it gives up, sbatch itself waits for a controller that is down; longer than Slurm's usual MessageTimeout of 10 s.
SUBMIT_S = 60.0


class Trouble(Enum):
    """Why a tool gave no answer."""

    MISSING = "missing"  # the program does not exist
    UNREACHABLE = (
        "unreachable"  # slurmctld, slurmdbd or munged does not answer; the request may have arrived all the same
    )
    REFUSED = "refused"  # Slurm answered, and the answer is no
    STOPPED = "stopped"  # we were asked to stop while it ran


class CommandFailed(Exception):
    """A Slurm tool gave no answer. ``said`` is what it printed, in Slurm's own words."""

    def __init__(self, trouble: Trouble, argv: Sequence[str], said: str):
        self.trouble, self.tool, self.said = trouble, argv[0], said.strip()
        super().__init__(f"{self.tool}: {self.said or trouble.value}")


# What Slurm's tools print when a daemon does not answer (slurm/src/common/slurm_errno.c, slurm_protocol_api.c, and munge's client).
_UNREACHABLE = re.compile(
    r"unable to contact slurm controller|socket timed out|connection refused|connection timed out|connection failure"
    r"|zero bytes were transmitted|slurm_receive_msg|slurm_persist_conn|transport endpoint|standby mode|no route to host"
    r"|network is unreachable|unable to establish (controller|configuration)|could not establish a configuration"
    r"|temporarily unable|resource temporarily unavailable|problem talking to the database|controller not responding"
    r"|communication shutdown failure|unspecified error|munge",
    re.IGNORECASE,
)


def trouble_of(said: str) -> Trouble:
    """Whether what a failed tool printed means that a daemon did not answer, or that it refused."""
    return Trouble.UNREACHABLE if _UNREACHABLE.search(said) else Trouble.REFUSED


def run(
    argv: Sequence[str],
    *,
    timeout_s: float = QUERY_S,
    stdin: str | None = None,
    stop: threading.Event | None = None,
    env: Mapping[str, str] | None = None,
) -> str:
    """Run a tool and give what it printed. It dies with the calling thread, so that a killed run submits nothing more.

    Args:
        stop: when set, the tool is ended and CommandFailed(STOPPED) raised.
        env: the tool's environment; by default ours without what would change the output of a query.

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
            preexec_fn=_die_with_us_alone,
        )
    except OSError as error:
        raise CommandFailed(Trouble.MISSING, argv, str(error)) from error
    try:
        out, err = _communicate(child, argv, stdin, time.monotonic() + timeout_s, stop, timeout_s)
    finally:
        if child.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.communicate()
    if child.returncode != 0:
        said = err.strip() or out.strip() or f"ended with exit code {child.returncode}"
        raise CommandFailed(trouble_of(said), argv, said)
    return out


def _die_with_us_alone() -> None:
    # An interrupted run sends SIGINT to its children; a tool that is cut off half-way leaves us not knowing what it did.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent()


def _communicate(
    child: subprocess.Popen[str],
    argv: Sequence[str],
    stdin: str | None,
    deadline: float,
    stop: threading.Event | None,
    timeout_s: float,
) -> tuple[str, str]:
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            raise CommandFailed(Trouble.UNREACHABLE, argv, f"gave no answer within {timeout_s:.0f} s")
        if stop is not None and stop.is_set():
            raise CommandFailed(Trouble.STOPPED, argv, "stopped")
        try:
            return child.communicate(stdin, timeout=min(left, 0.2 if stop is not None else left))
        except subprocess.TimeoutExpired:
            stdin = None  # handed over already


def query_environment() -> dict[str, str]:
    """Our environment without the variables by which users change the format and the choice of what Slurm's tools list."""
    return without_choices(os.environ)


def without_choices(env: Mapping[str, str]) -> dict[str, str]:
    """``env`` without those variables."""
    leave_out = ("SQUEUE_", "SACCT_", "SCANCEL_", "SLURM_TIME_FORMAT")
    return {name: value for name, value in env.items() if not name.startswith(leave_out)}


def scancel(
    *, name: str | None = None, ids: Sequence[str] = (), timeout_s: float = QUERY_S, stop: threading.Event | None = None
) -> None:
    """Cancel our jobs of a name, or these jobs. Jobs that have ended already are no fault.

    Raises:
        CommandFailed: no answer.
    """
    which = [f"--user={os.getuid()}", f"--name={name}"] if name else list(ids)
    run(["scancel", "--quiet", *which], timeout_s=timeout_s, stop=stop)
