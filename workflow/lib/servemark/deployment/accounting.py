"""account_allocation: what the scheduler says of a deployment's jobs, once they have ended. It never fails a run.

Outside the group, because nobody knows how a job ended while it runs. A job's account is kept in the newest attempt's folder as well,
so that it is asked for once, also when the scheduler has forgotten the job by the time of a replay.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
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
# slurmctld tells slurmdbd of a job's end within a second or two; a busy slurmdbd takes longer, and then the controller is asked.
PATIENCE_S = 10.0
# The first pause between two questions; each next one is twice as long, up to the longest.
PAUSE_S = 0.2
LONGEST_PAUSE_S = 1.0
# What a job's end may precede the attempt's first file by: clocks of two machines.
SKEW = timedelta(minutes=5)

_OWNER = re.compile(r"job (\d+)(?:, start (\d+))?")
_POOREST_FIRST = ("none", "journal", "scontrol", "sacct")


@dataclass(frozen=True)
class Ran:
    """An attempt and the start of the job that it ran in: the job's id and how often it had been started before."""

    attempt: Path
    job: str
    restarts: int
    began: datetime


def account(plan: Plan, folder: Path, jobs_file: Path, *, progress: Progress, patience_s: float = PATIENCE_S) -> Accounting:
    """Return the record of the jobs in which the deployment was ever started; jobs that found everything in the ledger are not among them.

    Args:
        folder: the deployment's.
        jobs_file: the executor's journal of the run.
        patience_s: how long to wait for a job's end to arrive in accounting.
    """
    ran = jobs_of(attempts.every(folder))
    known = remembered(ran)
    every = list(dict.fromkeys(item.job for item in ran))
    wanted = [job for job in every if not _settled(known.get(job, []))]
    entries = list(journal.read(jobs_file)) if wanted else []
    asking = Asking(patience_s)
    found = asking.all(wanted, _since(ran, wanted, entries)) if wanted else {}
    starts: list[Start] = []
    for job in every:
        noted = job_accounts.from_journal(entries, job)
        told = found.get(job) or known.get(job) or [noted]
        starts += job_accounts.when_forgotten(told, noted, forgotten=job in asking.forgotten)
    jobs = with_attempts(starts, ran)
    used = sum(serving_hours(plan, attempt, jobs) for attempt in attempts.every(folder))
    record = Accounting(
        deployment=plan.deployment,
        scheduler="slurm" if ran else "none",
        source=min((job.source for job in jobs), key=_POOREST_FIRST.index, default="none"),
        trouble=asking.trouble,
        jobs=jobs,
        gpu_hours_allocated=allocated_hours(jobs),
        gpu_hours_used=round(used, 6),
    )
    if ran:
        progress.say(_words(record))
        record.write(ran[-1].attempt / KEPT)
    return record


def jobs_of(every: Iterable[Path]) -> list[Ran]:
    """Return the attempts that ran in a job, oldest first."""
    found = []
    for attempt in every:
        path = attempt / "keeper-spec.json"
        owner = _OWNER.fullmatch(attempts.spec(attempt).owner or "") if path.exists() else None
        if owner:
            began = datetime.fromtimestamp(path.stat().st_mtime, UTC)
            found.append(Ran(attempt, owner[1], int(owner[2] or 1) - 1, began))
    return found


def remembered(ran: Sequence[Ran]) -> dict[str, list[Start]]:
    """Return the starts of each job as the newest earlier record has them, without jobs in which something was started since."""
    for index in reversed(range(len(ran))):
        path = ran[index].attempt / KEPT
        if path.exists():
            newer = {later.job for later in ran[index + 1 :]}
            found: dict[str, list[Start]] = {}
            for start in Accounting.read(path).jobs:
                if start.job_id not in newer:
                    found.setdefault(start.job_id, []).append(start)
            return found
    return {}


def _settled(starts: Sequence[Start]) -> bool:
    return job_accounts.final(starts) and starts[-1].source in ("sacct", "scontrol")


class Asking:
    """Asks Slurm about jobs, within bounds. ``trouble`` says why a source gave no answer, in its own words; ``forgotten`` has the jobs
    that the controller does not know: they have ended.

    Args:
        patience_s: how long to wait for ends, once for accounting and once for the controller.
        run, clock, sleep: as ``commands.run``, ``time.monotonic`` and ``time.sleep``.
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
        self._pause_s = PAUSE_S
        self._patience_s, self._run, self._clock, self._sleep = patience_s, run, clock, sleep

    def all(self, wanted: Sequence[str], since: datetime) -> dict[str, list[Start]]:
        """Return the starts of each job, as far as accounting and then the controller know them."""
        found: dict[str, list[Start]] = {}
        try:
            deadline = self._clock() + self._patience_s
            while True:
                found = job_accounts.parse_sacct(self._ask(queries.sacct_argv(wanted, since)))
                if not self._again([start for job in wanted for start in found.get(job, [])[-1:]], len(wanted), deadline):
                    break
        except CommandFailed as error:
            self._note(error)
        # The controller, for what accounting lacks: an end that has not arrived, and GPUs that it does not count.
        deadline = self._clock() + self._patience_s
        for job in wanted:
            starts = found.get(job, [])
            if job_accounts.final(starts) and not any(start.nodes and not start.gpus for start in starts):
                continue
            try:
                while True:
                    controller = self._controller(job)
                    if controller is None:
                        self.forgotten.add(job)
                    found[job] = job_accounts.merge(starts, controller)
                    if not found[job] or not self._again(found[job][-1:], 1, deadline):
                        break
            except CommandFailed as error:
                self._note(error)
                if error.trouble is not Trouble.REFUSED:
                    break
        return found

    def _again(self, last: Sequence[Start], number: int, deadline: float) -> bool:
        """Return whether to ask again, after a pause: not every job has ended, and there is time."""
        # Inside the very job that is asked about there is no end to wait for.
        ours = os.environ.get("SLURM_JOB_ID")
        if (len(last) == number and all(job.job_id == ours or job_accounts.final([job]) for job in last)) or self._clock() >= deadline:
            return False
        self._sleep(min(self._pause_s, deadline - self._clock()))
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        return True

    def _controller(self, job: str) -> Start | None:
        try:
            return job_accounts.parse_scontrol(self._ask(["scontrol", "--oneliner", "show", "job", "-d", job]))
        except CommandFailed as error:
            if error.no_such_job:
                return None
            raise

    def _ask(self, argv: list[str]) -> str:
        return self._run(argv, env=commands.query_environment() | job_accounts.ENVIRONMENT)

    def _note(self, error: CommandFailed) -> None:
        self.trouble = self.trouble or str(error).splitlines()[0]


def with_attempts(starts: Sequence[Start], ran: Sequence[Ran]) -> tuple[JobAccount, ...]:
    """Return the starts with the attempts that ran in each: by its number, or else in the last start of the job that is known."""
    known: dict[str, list[int]] = {}
    for start in starts:
        known.setdefault(start.job_id, []).append(start.restarts)
    inside: dict[tuple[str, int], list[str]] = {}
    for item in ran:
        number = item.restarts if item.restarts in known[item.job] else max(known[item.job])
        inside.setdefault((item.job, number), []).append(str(item.attempt))
    return tuple(JobAccount(**start.model_dump() | {"attempts": tuple(inside.get((start.job_id, start.restarts), ()))}) for start in starts)


def allocated_hours(jobs: Sequence[JobAccount]) -> float | None:
    """Return elapsed x GPUs of all jobs, in hours; None when one of the two is not known of one of them, or without a job."""
    total = 0.0
    for job in jobs:
        if job.elapsed_s is None or job.gpus is None:
            return None
        total += job.elapsed_s * job.gpus / 3600
    return round(total, 6) if jobs else None


def serving_hours(plan: Plan, attempt: Path, jobs: Iterable[JobAccount] = ()) -> float:
    """Return device-hours in which an attempt could serve: ranks of the topology x :func:`serving_seconds`; 0 if it never became ready."""
    path = attempt / STARTUP
    if not path.exists():
        return 0.0
    end = next((job.ended_at for job in jobs if str(attempt) in job.attempts), None)
    return plan.topology.world_size * serving_seconds(Startup.read(path), supervisor.read_daemons(attempt), end) / 3600


def serving_seconds(startup: Startup, daemons: Iterable[DaemonState], killed_at: str | None = None) -> float:
    """From the last server's first token to the first server's end; 0 when one of them is not known.

    Args:
        killed_at: the job's end, for servers that were killed together with the keeper that would have noted their end.
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
    """Before any of these jobs could have ended: the first submission or attempt that is known."""
    moments = [item.began for item in ran if item.job in wanted]
    moments += [
        datetime.fromtimestamp(float(entry["time"]), UTC)
        for entry in entries
        if entry.get("event") == "submitted" and str(entry.get("job")) in wanted
    ]
    return min(moments) - SKEW


def _words(record: Accounting) -> str:
    jobs = ", ".join(f"job {job.job_id} {job.state}" for job in record.jobs)
    hours = "not known" if record.gpu_hours_allocated is None else f"{record.gpu_hours_allocated:.2f}"
    missing = f" (Slurm did not tell all: {record.trouble})" if record.source in ("journal", "none") and record.trouble else ""
    return f"{jobs}; GPU-hours: {hours} allocated, {record.gpu_hours_used:.2f} used{missing}"
