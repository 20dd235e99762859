"""Query Slurm about jobs, partitions and nodes: squeue, scontrol, sacct and sinfo."""

import os
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from snakemake_executor_plugin_slurm_guarded import commands
from snakemake_executor_plugin_slurm_guarded.commands import QUERY_S, CommandFailed, Trouble
from snakemake_executor_plugin_slurm_guarded.states import State

# The fields of Job by the names of each source. squeue prints comment and folder behind them.
_SQUEUE = {"id": "%i", "state": "%T", "elapsed_s": "%M", "limit_min": "%l", "submitted": "%V", "started": "%S", "nodes": "%N",
           "reason": "%r", "name": "%j"}  # fmt: skip
_SCONTROL = {"id": "JobId", "state": "JobState", "reason": "Reason", "nodes": "NodeList", "name": "JobName", "submitted": "SubmitTime",
             "started": "StartTime", "ended": "EndTime", "elapsed_s": "RunTime", "limit_min": "TimeLimit", "exit": "ExitCode",
             "requeue": "Requeue", "partition": "Partition", "account": "Account", "qos": "QOS", "cpus": "NumCPUs",
             "restarts": "Restarts"}  # fmt: skip
_SACCT = {"id": "JobID", "state": "State", "exit": "ExitCode", "reason": "Reason", "partition": "Partition", "account": "Account",
          "qos": "QOS", "nodes": "NodeList", "tres": "AllocTRES", "cpus": "AllocCPUS", "submitted": "Submit", "started": "Start",
          "ended": "End", "elapsed_s": "ElapsedRaw", "limit_min": "TimelimitRaw"}  # fmt: skip
SQUEUE_FORMAT = "|".join([*_SQUEUE.values(), "%k", "%Z"])
_JOB_ID = re.compile(r"\d+([_+][\d\[\]%,-]+)?")
# States in sinfo of nodes that run a job or can take one. Nodes with another state, or with a `*` (no response), take none.
_IN_SERVICE = frozenset(["idle", "allocated", "mixed", "completing", "planned"])


@dataclass(frozen=True)
class Job:
    """One start of a job as Slurm lists it. Missing values are None, 0 or empty; times are Slurm's own text."""

    id: str  # in accounting with `+N` at its end for a component of a heterogeneous job
    state: State
    reason: str = ""
    nodes: str = ""
    comment: str = ""
    name: str = ""
    workdir: str = ""
    submitted: str = ""
    started: str = ""
    ended: str = ""
    elapsed_s: float | None = None
    limit_min: float | None = None
    exit: str = ""  # CODE:SIGNAL
    requeue: bool = False  # whether Slurm may start it again
    partition: str = ""
    account: str = ""
    qos: str = ""
    tres: str = ""  # such as cpu=32,gres/gpu=8
    cpus: int = 0
    restarts: int = 0  # number of earlier starts

    @property
    def queue_wait_s(self) -> float | None:
        """Seconds from submission to start; None while one of the times is missing."""
        try:
            return max(0.0, (datetime.fromisoformat(self.started) - datetime.fromisoformat(self.submitted)).total_seconds())
        except ValueError:
            return None

    @property
    def exit_code(self) -> int | None:
        """The exit code of the script; None while there is none."""
        code = self.exit.partition(":")[0]
        return int(code) if code.isdigit() else None

    @property
    def signal(self) -> int | None:
        """The signal that ended the script; None without one."""
        return _count(self.exit.partition(":")[2]) or None


def _job(texts: Mapping[str, str]) -> Job:
    """Return the job with these fields. sacct prints raw seconds and minutes, the other commands ``D-HH:MM:SS``."""
    read: dict[str, Callable[[str], Any]] = {
        "state": State.parse,
        "elapsed_s": lambda text: float(text) if text.isdigit() else duration_s(text),
        "limit_min": lambda text: float(text) if text.isdigit() else minutes(text),
        "requeue": "1".__eq__,
        "cpus": _count,
        "restarts": _count,
    }
    return Job(**{name: read.get(name, str)(stated(text)) for name, text in texts.items()})


def squeue(names: Iterable[str], *, finished: bool, timeout_s: float = QUERY_S, stop: threading.Event | None = None) -> list[Job]:
    """Return our own jobs with one of these names.

    Args:
        finished: include jobs that have ended within MinJobAge (300 s by default).
        stop: when set, the query is ended.

    Raises:
        CommandFailed: also for unreadable output, so that an empty list always means that there is no such job.
    """
    # --all: without it squeue omits jobs in hidden partitions, even our own.
    argv = ["squeue", "--all", "--noheader", f"--user={os.getuid()}", f"--name={','.join(names)}", f"--format={SQUEUE_FORMAT}"]
    text = commands.run([*argv, "--states=all"] if finished else argv, timeout_s=timeout_s, stop=stop)
    jobs = parse_squeue(text)
    if text.strip() and not jobs:
        raise CommandFailed(Trouble.UNREACHABLE, argv, f"printed something unexpected: {text.strip()[:200]}")
    return jobs


def parse_squeue(text: str) -> list[Job]:
    """Read ``squeue --format=SQUEUE_FORMAT``; skip other lines.

    The components ``ID+0``, ``ID+1`` of a heterogeneous job become one job with the state of the first: only that one runs the script.
    """
    jobs: dict[str, Job] = {}
    for line in text.splitlines():
        *columns, rest = line.split("|", len(_SQUEUE))
        if len(columns) < len(_SQUEUE) or not _JOB_ID.fullmatch(columns[0].strip()) or not columns[1].strip():
            continue
        # The comment and the folder may contain "|", and the folder may end with a space. The folder begins with a slash.
        comment, bar, below = rest.partition("|/")
        job, _, component = columns[0].strip().partition("+")
        if job not in jobs or component in ("", "0"):
            texts = dict(zip(_SQUEUE, columns, strict=True)) | {"id": job, "comment": comment}
            jobs[job] = replace(_job(texts), workdir=f"/{below}" if bar else "")
    return list(jobs.values())


@dataclass(frozen=True)
class Pending:
    """A waiting job of any user. ``start``: expected start as Slurm estimates it, ``YYYY-MM-DDTHH:MM:SS``; empty without an estimate."""

    id: str
    partition: str
    priority: int
    start: str
    reason: str


def pending(*, timeout_s: float = QUERY_S) -> list[Pending]:
    """Return all waiting jobs that Slurm shows to this user.

    Raises:
        CommandFailed: Slurm does not respond.
    """
    text = commands.run(["squeue", "--all", "--noheader", "--states=PENDING", "--format=%i|%P|%Q|%S|%r"], timeout_s=timeout_s)
    lines = [[stated(field).replace("N/A", "") for field in line.split("|", 4)] for line in text.splitlines() if line.count("|") >= 4]
    return [Pending(job, partition, _count(priority), start, why) for job, partition, priority, start, why in lines]


def scontrol_job(job: str, *, timeout_s: float = QUERY_S, stop: threading.Event | None = None) -> Job | None:
    """Return a job as slurmctld records it; None if slurmctld has no such job."""
    argv = ["scontrol", "--oneliner", "show", "job", "-d", job]
    try:
        return next(iter(parse_scontrol(commands.run(argv, timeout_s=timeout_s, stop=stop))), None)
    except CommandFailed as error:
        if error.no_such_job:
            return None
        raise


def parse_scontrol(text: str) -> list[Job]:
    """Read ``scontrol show job -d``, on one line or many.

    A heterogeneous job has an entry for each component, the one with the script first; all others are printed twice.
    """
    found = []
    for part in re.split(r"^(?=JobId=)", text, flags=re.MULTILINE):
        # The first value of a name counts: free text further on (Comment, Command) may hold NAME=VALUE too.
        values = dict(reversed(re.findall(r"(?:^|\s)([A-Z][\w:/]*)=(\S*)", part)))
        if _JOB_ID.fullmatch(values.get("JobId", "")) and values.get("JobState"):
            job = _job({name: values.get(field, "") for name, field in _SCONTROL.items()})
            # On a site that does not account for gres/gpu, only JOB_GRES (a sum over all nodes) has the GPUs.
            tres = stated(values.get("AllocTRES", "")) or stated(values.get("TRES", ""))
            tres = tres if "gres/gpu" in tres else stated(values.get("JOB_GRES", "")).replace(":", "=")
            # Slurm prints a start for a job that was cancelled before it had a node, and an end (by its limit) for a running job.
            started, ended = job.started if job.nodes else "", job.ended if job.state.ended else ""
            found.append(replace(job, tres=tres, started=started, ended=ended))
    return found


def sacct_argv(job_ids: Iterable[str], since: datetime | None = None) -> list[str]:
    """Return the sacct command line for these jobs.

    Args:
        since: list every start that ended after this time. It must be early enough for all starts of these jobs; it omits older jobs
            with the same ids (a cluster may restart its numbering). None: list only the last start.
    """
    every = ["--duplicates", f"--starttime={since.astimezone(UTC):%Y-%m-%dT%H:%M:%S}"] if since else []
    fields = ["--allocations", "--noheader", "--parsable2", f"--format={','.join(_SACCT.values())}"]
    return ["sacct", *every, *fields, f"--jobs={','.join(job_ids)}"]


def sacct_job(job: str, *, timeout_s: float = QUERY_S, stop: threading.Event | None = None) -> Job | None:
    """Return the last start of a job in accounting; None when accounting has no such job."""
    starts = parse_sacct(commands.run(sacct_argv([job]), timeout_s=timeout_s, stop=stop))
    return next((start for start in reversed(starts) if start.id in (job, f"{job}+0")), None)


def parse_sacct(text: str) -> list[Job]:
    """Read the output of :func:`sacct_argv`: a job for each start and component, in the order of submission."""
    lines = [fields for line in text.splitlines() if len(fields := line.split("|")) == len(_SACCT)]
    jobs = [_job(dict(zip(_SACCT, fields, strict=True))) for fields in lines if fields[0].replace("+", "", 1).isdigit() and fields[1]]
    return sorted(jobs, key=lambda job: (job.submitted, job.id))


def duration_s(text: str) -> float | None:
    """Return the seconds of ``D-HH:MM:SS``, ``HH:MM:SS`` or ``MM:SS``; None for ``UNLIMITED`` and other words."""
    found = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", text.strip())
    if not found:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def minutes(text: str) -> float | None:
    """Return the minutes of a duration; None for ``UNLIMITED`` and other words."""
    seconds = duration_s(text)
    return None if seconds is None else seconds / 60


def stated(text: str) -> str:
    """Return a field's text without surrounding blanks; empty for Slurm's words for a missing value."""
    text = text.strip()
    return "" if text in ("None", "(null)", "Unknown", "None assigned") else text


def _count(text: str) -> int:
    """Return the number at the beginning of a text: 32 for ``32-64``, 0 for no number."""
    found = re.match(r"\d+", text)
    return int(found[0]) if found else 0


def has_gpus(partition: str | None) -> bool:
    """Return whether a partition (None: any) has a node with GPUs."""
    return "gpu" in _sinfo("%G", partition)


def nodes_out(partition: str | None) -> str | None:
    """Return the nodes of a partition (None: of any) that take no job now, as counts and sinfo's states: ``2 drained, 1 unknown*``.

    Empty if all nodes are in service. None if sinfo fails or its output is unreadable.
    """
    try:
        printed = _sinfo("%D %T", partition)
    except CommandFailed:
        return None
    rows = [words for line in printed.splitlines() if len(words := line.split()) == 2 and words[0].isdecimal()]
    if printed.strip() and not rows:
        return None
    out: Counter[str] = Counter()
    for number, state in rows:
        if "*" in state or re.sub(r"\W", "", state.lower()) not in _IN_SERVICE:
            out[state] += int(number)
    return ", ".join(f"{number} {state}" for state, number in out.items())


def _sinfo(fields: str, partition: str | None) -> str:
    named = [f"--partition={partition}"] if partition else []
    return commands.run(["sinfo", "--all", "--noheader", f"--format={fields}", *named])


def partition_limit(partition: str | None) -> float | None:
    """Return the longest time limit of a partition, minutes; None if it has none or Slurm does not print it.

    Args:
        partition: None: the default one. Of several (``a,b``) the shortest limit counts.
    """
    limits = []
    wanted = partition.split(",") if partition else None
    for line in commands.run(["scontrol", "--all", "--oneliner", "show", "partition"]).splitlines():
        fields = dict(word.split("=", 1) for word in line.split() if "=" in word)
        if fields.get("PartitionName") in wanted if wanted else fields.get("Default") == "YES":
            limits.append(minutes(fields.get("MaxTime", "")))
    return min((limit for limit in limits if limit is not None), default=None)
