"""Slurm's tools: run with a time limit, say what failed, read what they print."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from servemark.processes import _die_with_parent
from servemark.slurm.states import State

# squeue with many jobs on a busy controller answers within a few seconds; beyond this it is treated as not answering.
QUERY_S = 20.0
# Before it gives up, sbatch itself waits for a controller that is down; longer than Slurm's usual MessageTimeout of 10 s.
SUBMIT_S = 60.0

SQUEUE_FORMAT = "%i|%T|%M|%l|%V|%S|%N|%r|%k"
SACCT_FORMAT = "JobIDRaw,State,ExitCode,ElapsedRaw,Submit,Start,NodeList"


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
    _die_with_parent()


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
    leave_out = ("SQUEUE_", "SACCT_", "SCANCEL_", "SLURM_TIME_FORMAT")
    return {name: value for name, value in os.environ.items() if not name.startswith(leave_out)}


@dataclass(frozen=True)
class Job:
    """What Slurm says of one job. What it does not say is None or empty; times are in seconds, the limit in minutes."""

    id: str
    state: State
    reason: str = ""
    nodes: str = ""
    comment: str = ""
    elapsed_s: float | None = None
    queue_wait_s: float | None = None
    limit_min: float | None = None
    exit_code: int | None = None
    signal: int | None = None
    requeue: bool = False


_JOB_ID = re.compile(r"\d+([_+][\d\[\]%,-]+)?")


def squeue(
    names: Iterable[str], *, finished: bool, timeout_s: float = QUERY_S, stop: threading.Event | None = None
) -> list[Job]:
    """Our own jobs with one of these names; with ``finished`` also those that have ended within MinJobAge (300 s by default).

    Raises:
        CommandFailed: no answer. Text that is no answer counts as none: an empty list means that there is no such job.
    """
    argv = ["squeue", "--noheader", f"--user={os.getuid()}", f"--name={','.join(names)}", f"--format={SQUEUE_FORMAT}"]
    text = run([*argv, "--states=all"] if finished else argv, timeout_s=timeout_s, stop=stop)
    jobs = parse_squeue(text)
    if text.strip() and not jobs:
        raise CommandFailed(Trouble.UNREACHABLE, argv, f"printed something unexpected: {text.strip()[:200]}")
    return jobs


def parse_squeue(text: str) -> list[Job]:
    """Read ``squeue --format=SQUEUE_FORMAT``; lines of another shape are passed over."""
    jobs = []
    for line in text.splitlines():
        fields = [field.strip() for field in line.split("|", 8)]
        if len(fields) != 9 or not _JOB_ID.fullmatch(fields[0]) or not fields[1]:
            continue
        job, state, used, limit, submitted, started, nodes, reason, comment = fields
        jobs.append(
            Job(
                id=job,
                state=State.parse(state),
                reason="" if reason == "None" else reason,
                nodes=nodes,
                comment="" if comment == "(null)" else comment,
                elapsed_s=duration_s(used),
                queue_wait_s=between_s(submitted, started),
                limit_min=_minutes(limit),
            )
        )
    return jobs


def scontrol_job(job: str, *, timeout_s: float = QUERY_S, stop: threading.Event | None = None) -> Job | None:
    """What slurmctld knows of one job; None when it does not know it (any more).

    Raises:
        CommandFailed: no answer.
    """
    try:
        return parse_scontrol_job(
            run(["scontrol", "--oneliner", "show", "job", "-d", job], timeout_s=timeout_s, stop=stop)
        )
    except CommandFailed as error:
        if error.trouble is Trouble.REFUSED and "invalid job id" in error.said.lower():
            return None
        raise


_FIELD = re.compile(r"(?:^|\s)([A-Z][\w:/]*)=(\S*)")


def parse_scontrol_job(text: str) -> Job | None:
    """Read ``scontrol show job -d ID``, on one line or many; None when it describes no job."""
    # Free text may hold NAME=VALUE too (Comment, Command); what Slurm prints of a job comes first.
    fields: dict[str, str] = {}
    for name, value in _FIELD.findall(text):
        fields.setdefault(name, value)
    if not _JOB_ID.fullmatch(fields.get("JobId", "")) or not fields.get("JobState"):
        return None
    code, number = _exit(fields.get("ExitCode", ""))
    return Job(
        id=fields["JobId"],
        state=State.parse(fields["JobState"]),
        reason="" if fields.get("Reason", "None") == "None" else fields["Reason"],
        nodes=_known(fields.get("NodeList", "")),
        elapsed_s=duration_s(fields.get("RunTime", "")),
        queue_wait_s=between_s(fields.get("SubmitTime", ""), fields.get("StartTime", "")),
        limit_min=_minutes(fields.get("TimeLimit", "")),
        exit_code=code,
        signal=number,
        requeue=fields.get("Requeue") == "1",
    )


def sacct(job_ids: Iterable[str], *, timeout_s: float = QUERY_S, stop: threading.Event | None = None) -> dict[str, Job]:
    """What accounting knows of these jobs, by id; jobs that it does not know are left out.

    Raises:
        CommandFailed: no answer, also where there is no accounting.
    """
    argv = ["sacct", "-X", "-n", "-P", f"--format={SACCT_FORMAT}", f"--jobs={','.join(job_ids)}"]
    return parse_sacct(run(argv, timeout_s=timeout_s, stop=stop))


def parse_sacct(text: str) -> dict[str, Job]:
    """Read ``sacct -X -n -P --format=SACCT_FORMAT``; the last line of a requeued job counts."""
    jobs = {}
    for line in text.splitlines():
        fields = [field.strip() for field in line.split("|")]
        if len(fields) != 7 or not _JOB_ID.fullmatch(fields[0]) or not fields[1]:
            continue
        job, state, exit_text, elapsed, submitted, started, nodes = fields
        code, number = _exit(exit_text)
        jobs[job] = Job(
            id=job,
            state=State.parse(state),
            nodes="" if nodes == "None assigned" else nodes,
            elapsed_s=float(elapsed) if elapsed.isdigit() else None,
            queue_wait_s=between_s(submitted, started),
            exit_code=code,
            signal=number,
        )
    return jobs


def scancel(
    *, name: str | None = None, ids: Sequence[str] = (), timeout_s: float = QUERY_S, stop: threading.Event | None = None
) -> None:
    """Cancel our jobs of a name, or these jobs. Jobs that have ended already are no fault.

    Raises:
        CommandFailed: no answer.
    """
    which = [f"--user={os.getuid()}", f"--name={name}"] if name else list(ids)
    run(["scancel", "--quiet", *which], timeout_s=timeout_s, stop=stop)


_DURATION = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)")


def duration_s(text: str) -> float | None:
    """Seconds of Slurm's ``D-HH:MM:SS``, ``HH:MM:SS`` or ``MM:SS``; None for ``INVALID``, ``UNLIMITED`` and other words."""
    found = _DURATION.fullmatch(text.strip())
    if not found:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def _minutes(text: str) -> float | None:
    seconds = duration_s(text)
    return None if seconds is None else seconds / 60


def between_s(begin: str, end: str) -> float | None:
    """Seconds between two of Slurm's time stamps (local time, ``2026-11-20T18:00:00``); None when one is not known."""
    try:
        return max(0.0, (datetime.fromisoformat(end) - datetime.fromisoformat(begin)).total_seconds())
    except ValueError:
        return None


def _exit(text: str) -> tuple[int | None, int | None]:
    """``CODE:SIGNAL``; no signal is 0 in Slurm's words and None in ours."""
    code, _, number = text.partition(":")
    if not code.isdigit():
        return None, None
    return int(code), (int(number) or None) if number.isdigit() else None


def _known(text: str) -> str:
    return "" if text in ("(null)", "None") else text
