"""account_allocation: Slurm's account of a deployment's jobs after they have ended. It never fails a run.

The rule stands outside the group, because Slurm records a job's end only after it. Slurm deletes old jobs, so the newest attempt's
folder keeps a copy of the account for replays.
"""

import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import groupby
from pathlib import Path
from typing import Any

from servemark import supervisor
from servemark.deployment import attempts
from servemark.progress import Progress
from servemark.records import Accounting, DaemonState, JobAccount, Plan, Startup
from snakemake_executor_plugin_slurm_guarded import commands, job_accounts, journal, queries
from snakemake_executor_plugin_slurm_guarded.commands import CommandFailed, Trouble
from snakemake_executor_plugin_slurm_guarded.records import JobAccount as Start

KEPT = "accounting.json"
STARTUP = "startup.json"
# slurmctld reports a job's end to slurmdbd within a second or two. If slurmdbd is slower than this, slurmctld is queried.
PATIENCE_S = 10.0
# Pause between two queries.
PAUSE_S = 0.5
# Largest difference between the clocks of two machines.
SKEW = timedelta(minutes=5)

_OWNER = re.compile(r"job (\d+)(?:, start (\d+))?")
_POOREST_FIRST = ("none", "journal", "scontrol", "sacct")


@dataclass(frozen=True)
class Ran:
    """An attempt, its job, and how often the job had been restarted before."""

    attempt: Path
    job: str
    restarts: int
    began: datetime
    attempt_id: str | None = None


def account(plan: Plan, folder: Path, jobs_file: Path, *, progress: Progress, patience_s: float = PATIENCE_S) -> Accounting:
    """Return the record of all jobs that started the deployment. Jobs that only replayed the ledger are left out.

    Args:
        folder: the deployment's folder.
        jobs_file: the executor's journal of the run.
        patience_s: how long to wait until accounting reports a job's end.
    """
    ran = jobs_of(attempts.every(folder))
    known = remembered(ran)
    every = list(dict.fromkeys(item.job for item in ran))
    wanted = [job for job in every if not (job_accounts.final(known.get(job, [])) and known[job][-1].source in ("sacct", "scontrol"))]
    entries = list(journal.read(jobs_file)) if wanted else []
    queried = Queries(patience_s)
    found = queried.all(wanted, _since(ran, wanted, entries)) if wanted else {}
    starts: list[Start] = []
    for job in every:
        from_journal = job_accounts.from_journal(entries, job)
        reported = found.get(job) or known.get(job) or [from_journal]
        starts += job_accounts.when_forgotten(reported, from_journal, forgotten=job in queried.forgotten)
    jobs = _with_attempts(starts, ran)
    record = Accounting(
        deployment=plan.deployment,
        scheduler="slurm" if ran else "none",
        source=min((job.source for job in jobs), key=_POOREST_FIRST.index, default="none"),
        trouble=queried.trouble,
        jobs=jobs,
        gpu_hours_allocated=allocated_hours(jobs),
        gpu_hours_used=round(sum(_serving_hours(plan, attempt, jobs) for attempt in attempts.every(folder)), 6),
    )
    if ran:
        progress.say(_words(record))
        record.write(ran[-1].attempt / KEPT)
    return record


def jobs_of(every: Iterable[Path]) -> list[Ran]:
    """Return the attempts that ran in a job, oldest first."""
    found = []
    for attempt in every:
        path = supervisor.own_file(attempt, supervisor.SPEC)
        if path.exists() and (owner := _OWNER.fullmatch((spec := supervisor.read_spec(attempt)).owner or "")):
            began = datetime.fromtimestamp(path.stat().st_mtime, UTC)
            found.append(Ran(attempt, owner[1], int(owner[2] or 1) - 1, began, spec.attempt_id))
    return found


def remembered(ran: Sequence[Ran]) -> dict[str, list[Start]]:
    """Return the starts of each job from the newest earlier record, without jobs that started an attempt after it."""
    newer: set[str] = set()
    for item in reversed(ran):
        if (item.attempt / KEPT).exists():
            by_job = groupby(Accounting.read(item.attempt / KEPT).jobs, key=lambda start: start.job_id)
            return {job: list(starts) for job, starts in by_job if job not in newer}
        newer.add(item.job)
    return {}


class Queries:
    """Queries of Slurm about jobs, for a limited time.

    Args:
        patience_s: how long to wait for ends, once for slurmdbd and once for slurmctld.
        run, clock, sleep: as ``commands.run``, ``time.monotonic`` and ``time.sleep``.

    Attributes:
        trouble: the error message of a source that did not respond.
        forgotten: jobs that slurmctld does not list: they have ended.
    """

    def __init__(
        self,
        patience_s: float = PATIENCE_S,
        run: Callable[..., str] = commands.run,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ):
        self.trouble: str | None = None
        self.forgotten: set[str] = set()
        self._patience_s, self._run, self._clock, self._sleep = patience_s, run, clock, sleep

    def all(self, wanted: Sequence[str], since: datetime) -> dict[str, list[Start]]:
        """Return the starts of each job that slurmdbd or slurmctld lists."""
        found: dict[str, list[Start]] = {}
        deadline = self._clock() + self._patience_s
        try:
            found = job_accounts.parse_sacct(self._run_tool(queries.sacct_argv(wanted, since)))
            while self._again([found.get(job, []) for job in wanted], deadline):
                found = job_accounts.parse_sacct(self._run_tool(queries.sacct_argv(wanted, since)))
        except CommandFailed as error:
            self._note(error)
        # slurmctld may list values that slurmdbd does not have: an end that has not arrived there, and GPUs that it does not count.
        deadline = self._clock() + self._patience_s
        for job in wanted:
            starts = found.get(job, [])
            if job_accounts.final(starts) and not any(start.nodes and not start.gpus for start in starts):
                continue
            try:
                found[job] = job_accounts.merge(starts, self._controller(job))
                while found[job] and self._again([found[job]], deadline):
                    found[job] = job_accounts.merge(starts, self._controller(job))
            except CommandFailed as error:
                self._note(error)
                if error.trouble is not Trouble.REFUSED:
                    break
        return found

    def _again(self, jobs: Sequence[Sequence[Start]], deadline: float) -> bool:
        """Return whether to query again, after a pause: a job other than this process's own has not ended, and there is time."""
        ours = os.environ.get("SLURM_JOB_ID")
        if all(starts and (starts[-1].job_id == ours or job_accounts.final(starts)) for starts in jobs) or self._clock() >= deadline:
            return False
        self._sleep(min(PAUSE_S, deadline - self._clock()))
        return True

    def _controller(self, job: str) -> Start | None:
        try:
            found = job_accounts.parse_scontrol(self._run_tool(["scontrol", "--oneliner", "show", "job", "-d", job]))
        except CommandFailed as error:
            if not error.no_such_job:
                raise
            found = None
        if found is None:
            self.forgotten.add(job)
        return found

    def _run_tool(self, argv: list[str]) -> str:
        return self._run(argv, env=commands.query_environment() | job_accounts.ENVIRONMENT)

    def _note(self, error: CommandFailed) -> None:
        self.trouble = self.trouble or str(error).splitlines()[0]


def _with_attempts(starts: Sequence[Start], ran: Sequence[Ran]) -> tuple[JobAccount, ...]:
    """Return the starts with their attempts. An attempt whose start is unknown belongs to the last known start of its job."""
    inside: dict[tuple[str, int], list[Ran]] = {}
    for item in ran:
        known = [start.restarts for start in starts if start.job_id == item.job]
        inside.setdefault((item.job, item.restarts if item.restarts in known else max(known)), []).append(item)
    return tuple(_with(start, inside.get((start.job_id, start.restarts), ())) for start in starts)


def _with(start: Start, ran: Sequence[Ran]) -> JobAccount:
    own = {"attempts": tuple(str(item.attempt) for item in ran), "attempt_ids": tuple(item.attempt_id for item in ran)}
    return JobAccount(**start.model_dump() | own)


def allocated_hours(jobs: Sequence[JobAccount]) -> float | None:
    """Return GPU-hours: elapsed time x GPUs of all jobs; None without a job, or if a job lacks one of the two."""
    used = [None if job.elapsed_s is None or job.gpus is None else job.elapsed_s * job.gpus / 3600 for job in jobs]
    known = [hours for hours in used if hours is not None]
    return round(sum(known), 6) if jobs and len(known) == len(jobs) else None


def _serving_hours(plan: Plan, attempt: Path, jobs: Iterable[JobAccount]) -> float:
    """Return device-hours of an attempt: ranks of the topology x :func:`serving_seconds`; 0 if it never became ready."""
    path = attempt / STARTUP
    if not path.exists():
        return 0.0
    end = next((job.ended_at for job in jobs if str(attempt) in job.attempts), None)
    return plan.topology.world_size * serving_seconds(Startup.read(path), supervisor.read_daemons(attempt), end) / 3600


def serving_seconds(startup: Startup, daemons: Iterable[DaemonState], killed_at: str | None = None) -> float:
    """Return the time from the last server's first token to the first server's end; 0 if one of them is unknown.

    Args:
        killed_at: the job's end, for servers that were killed together with the supervisor.
    """
    replicas = {place.daemon: place.replica for place in startup.servers} or {"server": ""}
    to_first_token = {start.replica: start.seconds_to_first_token for start in startup.replicas}
    ready: list[datetime] = []
    ended: list[datetime] = []
    for daemon in daemons:
        seconds = to_first_token.get(replicas.get(daemon.name, ""), startup.seconds_to_first_token)
        end = daemon.ended_at or killed_at
        if daemon.name in replicas and daemon.started_at and end and seconds is not None:
            ready.append(datetime.fromisoformat(daemon.started_at) + timedelta(seconds=seconds))
            ended.append(datetime.fromisoformat(end))
    return max(0.0, (min(ended) - max(ready)).total_seconds()) if ready else 0.0


def _since(ran: Sequence[Ran], wanted: Sequence[str], entries: Iterable[Mapping[str, Any]]) -> datetime:
    """Return a time before the end of any of these jobs: the first known submission or attempt."""
    submitted = (entry for entry in entries if entry.get("event") == "submitted" and str(entry.get("job")) in wanted)
    moments = [item.began for item in ran if item.job in wanted]
    return min(moments + [datetime.fromtimestamp(float(entry["time"]), UTC) for entry in submitted]) - SKEW


def _words(record: Accounting) -> str:
    jobs = ", ".join(f"job {job.job_id} {job.state}" for job in record.jobs)
    hours = "unknown" if record.gpu_hours_allocated is None else f"{record.gpu_hours_allocated:.2f}"
    missing = f" (Slurm's account is incomplete: {record.trouble})" if record.source in ("journal", "none") and record.trouble else ""
    return f"{jobs}; GPU-hours: {hours} allocated, {record.gpu_hours_used:.2f} used{missing}"
