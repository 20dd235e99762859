"""What Slurm knows of our jobs: squeue, scontrol and sacct asked, and what they print read."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from servemark.slurm import commands
from servemark.slurm.commands import QUERY_S, CommandFailed, Trouble
from servemark.slurm.states import State

SQUEUE_FORMAT = "%i|%T|%M|%l|%V|%S|%N|%r|%j|%k|%Z"
SACCT_FORMAT = "JobIDRaw,State,ExitCode,ElapsedRaw,Submit,Start,NodeList"


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
    name: str = ""
    workdir: str = ""


_JOB_ID = re.compile(r"\d+([_+][\d\[\]%,-]+)?")


def squeue(
    names: Iterable[str], *, finished: bool, timeout_s: float = QUERY_S, stop: threading.Event | None = None
) -> list[Job]:
    """Our own jobs with one of these names; with ``finished`` also those that have ended within MinJobAge (300 s by default).

    Raises:
        CommandFailed: no answer. Text that is no answer counts as none: an empty list means that there is no such job.
    """
    # --all: without it jobs of hidden partitions are left out, our own too.
    argv = [
        "squeue",
        "--all",
        "--noheader",
        f"--user={os.getuid()}",
        f"--name={','.join(names)}",
        f"--format={SQUEUE_FORMAT}",
    ]
    text = commands.run([*argv, "--states=all"] if finished else argv, timeout_s=timeout_s, stop=stop)
    jobs = parse_squeue(text)
    if text.strip() and not jobs:
        raise CommandFailed(Trouble.UNREACHABLE, argv, f"printed something unexpected: {text.strip()[:200]}")
    return jobs


def parse_squeue(text: str) -> list[Job]:
    """Read ``squeue --format=SQUEUE_FORMAT``; lines of another shape are passed over.

    The components ``ID+0``, ``ID+1`` of a heterogeneous job are one job, which ends with its first component: that has the script.
    """
    jobs: dict[str, Job] = {}
    for line in text.splitlines():
        *columns, rest = line.split("|", 9)
        fields = [field.strip() for field in columns]
        if len(fields) != 9 or not _JOB_ID.fullmatch(fields[0]) or not fields[1]:
            continue
        job, state, used, limit, submitted, started, nodes, reason, name = fields
        # The comment and the folder may contain "|", and the folder may end with a space. The folder begins with a slash.
        comment, bar, below = rest.partition("|/")
        comment, workdir = comment.strip(), f"/{below}" if bar else ""
        job, _, component = job.partition("+")
        if job in jobs and component not in ("", "0"):
            continue
        jobs[job] = Job(
            id=job,
            state=State.parse(state),
            reason="" if reason == "None" else reason,
            nodes=nodes,
            comment="" if comment == "(null)" else comment,
            elapsed_s=duration_s(used),
            queue_wait_s=between_s(submitted, started),
            limit_min=_minutes(limit),
            name=name,
            workdir=workdir,
        )
    return list(jobs.values())


def scontrol_job(job: str, *, timeout_s: float = QUERY_S, stop: threading.Event | None = None) -> Job | None:
    """What slurmctld knows of one job; None when it does not know it (any more).

    Raises:
        CommandFailed: no answer.
    """
    try:
        return parse_scontrol_job(
            commands.run(["scontrol", "--oneliner", "show", "job", "-d", job], timeout_s=timeout_s, stop=stop)
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
        name=fields.get("JobName", ""),
    )


def sacct(job_ids: Iterable[str], *, timeout_s: float = QUERY_S, stop: threading.Event | None = None) -> dict[str, Job]:
    """What accounting knows of these jobs, by id; jobs that it does not know are left out.

    Raises:
        CommandFailed: no answer, also where there is no accounting.
    """
    argv = ["sacct", "-X", "-n", "-P", f"--format={SACCT_FORMAT}", f"--jobs={','.join(job_ids)}"]
    return parse_sacct(commands.run(argv, timeout_s=timeout_s, stop=stop))


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
