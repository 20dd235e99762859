"""Track the jobs of one run: a state machine over Slurm's output (Tracker), and the queries that feed it (Watch).

Sources of a job's state, in this order: ``squeue`` (live jobs, and ended ones for MinJobAge), ``scontrol show job`` (slurmctld's own
record), ``sacct`` (accounting, if the site has it). A job that none of them lists is looked up a few times more, then it counts as LOST.
"""

import contextlib
import pwd
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from snakemake_executor_plugin_slurm_guarded import commands, journal, queries, reasons
from snakemake_executor_plugin_slurm_guarded.commands import CommandFailed, Trouble
from snakemake_executor_plugin_slurm_guarded.queries import Job
from snakemake_executor_plugin_slurm_guarded.reasons import LOST, STUCK, End
from snakemake_executor_plugin_slurm_guarded.states import REQUEUED_BY_SLURM, Meaning, State
from snakemake_executor_plugin_slurm_guarded.submit import Outage

_LONGEST_BACKOFF_S = 30.0
# Queries without a trace of a job until it counts as LOST.
_LOST_QUERIES = 3
# Only accounting has the name of the user who cancelled a job. It may lag behind the controller; the message waits no longer than this.
_CANCELLER_S = 3.0
# Jobs looked up one by one after a squeue.
_LOOKUPS = 8


@dataclass(frozen=True)
class Timing:
    """When to query and when to give up, in seconds."""

    first: float = 1.0  # from a job's submission to the first query
    shortest: float = 2.0  # bounds of the interval between queries; in between, a tenth of the time that a job has waited or run
    longest: float = 15.0
    lost: float = 30.0  # a job that no source lists for so long is LOST
    stuck: float = 300.0  # a job that stays COMPLETING for so long is STUCK; Slurm's UnkillableStepTimeout is 60 s by default
    waits: float = 5.0  # after this wait, the reason of a waiting job is reported
    requeue: float = 10.0  # an end state after which Slurm may requeue the job counts after this time

    def interval(self, age: float) -> float:
        """Return the seconds between two queries for a job that has waited or run for ``age`` seconds."""
        return min(self.longest, max(self.shortest, 0.1 * age))


@dataclass
class Tracked:
    """A submitted job that has not ended. Times are ``time.monotonic()``; ``reported`` has the reasons that the user has read."""

    id: str
    label: str
    token: str
    log: str
    submitted: float
    now: Job | None = None
    running_since: float | None = None
    missing_since: float | None = None
    missing_queries: int = 0
    ending_since: float | None = None
    ended_since: float | None = None
    reported: set[str] = field(default_factory=set)


@dataclass
class Update:
    """What one query has changed."""

    ended: list[End] = field(default_factory=list)  # the tracker has dropped these jobs
    missing: list[Tracked] = field(default_factory=list)  # squeue does not list these; call `found` or `not_found` for each
    changed: list[Tracked] = field(default_factory=list)  # these jobs have another state than before
    waiting: list[Tracked] = field(default_factory=list)  # these wait for a reason that the user has not read yet
    doubles: list[str] = field(default_factory=list)  # ids of jobs that were submitted twice (an sbatch seemed to fail); to be cancelled


class Tracker:
    """The jobs of one run that have not ended. It runs no commands and does not wait."""

    def __init__(self, timing: Timing | None = None, *, requeue: bool = False):
        self.timing, self._requeue = timing or Timing(), requeue
        self.jobs: dict[str, Tracked] = {}
        self._tokens: dict[str, str] = {}
        self._last_query = float("-inf")
        self._failures = 0

    def add(self, job: Tracked) -> None:
        """Track a job."""
        self.jobs[job.id] = job
        self._tokens[job.token] = job.id

    def next_query(self) -> float:
        """Return when to query next (``time.monotonic()``); infinity without jobs."""
        if not self.jobs:
            return float("inf")
        if self._failures:
            return self._last_query + min(_LONGEST_BACKOFF_S, self.timing.shortest * 2.0**self._failures)
        due = []
        for job in self.jobs.values():
            begin = job.submitted if job.running_since is None else job.running_since
            is_new = job.now is None and job.missing_since is None
            due.append(job.submitted + self.timing.first if is_new else self._last_query + self.timing.interval(self._last_query - begin))
        # 5 s between queries for 50 jobs, so that many short jobs cost 12 queries a minute.
        return max(min(due), self._last_query + max(self.timing.shortest, min(0.1 * len(self.jobs), 5.0)))

    def update(self, now: float, listed: Iterable[Job], *, queried: float | None = None) -> Update:
        """Take in squeue's list of this run's jobs at ``now``. A job submitted after ``queried``, the query's start, is not missing."""
        self._last_query, self._failures = now, 0
        views = {view.id: view for view in listed}
        update = Update()
        for job in list(self.jobs.values()):
            view = views.get(job.id)
            if view is not None:
                self.found(now, job, view, update)
            elif job.submitted <= (now if queried is None else queried):
                update.missing.append(job)
        update.doubles = [view.id for view in views.values() if self._tokens.get(view.comment, view.id) != view.id and not view.state.ended]
        return update

    def no_response(self, now: float) -> None:
        """Note a query without a response: no state changes, and each time the next query comes later."""
        self._last_query = now
        self._failures = min(self._failures + 1, 10)

    def not_found(self, now: float, job: Tracked, update: Update) -> None:
        """Note that Slurm responds, and neither the controller nor accounting has this job or its end."""
        if job.missing_since is None:
            job.missing_since = now
        job.missing_queries += 1
        if now - job.missing_since >= self.timing.lost and job.missing_queries >= _LOST_QUERIES:
            self._end(job, LOST, update)

    def found(self, now: float, job: Tracked, view: Job, update: Update) -> None:
        """Take in a job as squeue or the controller lists it, or its end in accounting.

        If only accounting lists the job, and as running, call :meth:`not_found`.
        """
        if job.now is None or job.now.state != view.state:
            update.changed.append(job)
        job.now, job.missing_since, job.missing_queries = view, None, 0
        meaning, reason = view.state.meaning, reasons.code(view.reason)
        if meaning is Meaning.WAITING and reason and reason not in job.reported and now - job.submitted >= self.timing.waits:
            job.reported.add(reason)
            update.waiting.append(job)
        job.running_since = _since(job.running_since, now - (view.elapsed_s or 0.0), meaning is Meaning.RUNNING)
        job.ending_since = _since(job.ending_since, now, meaning is Meaning.ENDING)
        job.ended_since = _since(job.ended_since, now, view.state.ended)
        if job.ended_since is not None:
            may_start_again = (self._requeue or view.requeue) and view.state.word in REQUEUED_BY_SLURM
            if not may_start_again or now - job.ended_since >= self.timing.requeue:
                self._end(job, view.state.word, update)
        elif job.ending_since is not None and now - job.ending_since >= self.timing.stuck:
            self._end(job, STUCK, update)

    def _end(self, job: Tracked, word: str, update: Update) -> None:
        del self.jobs[job.id]
        update.ended.append(End(job.id, job.label, job.log, word, word == "COMPLETED", job.now or Job(job.id, State(""))))


def _since(before: float | None, now: float, holds: bool) -> float | None:
    if not holds:
        return None
    return now if before is None else before


@dataclass
class Watch:
    """Query the jobs of one run. One thread calls it while others add jobs to the tracker; ``say`` gets why a job waits.

    ``ended`` has the ended jobs by id, until the caller takes them out.
    """

    run: str
    jobs_file: Path
    tracker: Tracker
    lock: threading.RLock
    outage: Outage
    stop: threading.Event
    say: Callable[[str], None]
    ended: dict[str, End] = field(default_factory=dict)
    _sacct_pauses_until: float = 0.0

    def query(self) -> None:
        """Query all jobs once; cancel jobs that were submitted twice."""
        if not self.tracker.jobs or self.stop.is_set():
            return
        queried = time.monotonic()
        try:
            listed = queries.squeue([self.run], finished=True, stop=self.stop)
        except CommandFailed as error:
            self._no_response(error)
            return
        self.outage.ends()
        with self.lock:
            update = self.tracker.update(time.monotonic(), listed, queried=queried)
        self._look_up(update)
        for job in update.waiting:
            if job.now:
                self.say(reasons.sentence(job.label, job.id, job.now.reason))
        for job in {job.id: job for job in (*update.changed, *update.waiting)}.values():
            if job.now and not job.now.state.ended:
                facts = {"state": job.now.state.word, "reason": job.now.reason, "nodes": job.now.nodes}
                journal.append(self.jobs_file, "state", run=self.run, job=job.id, **facts)
        # Successes first: they need no further query.
        for end in sorted(update.ended, key=lambda end: not end.success):
            self.ended[end.job] = end if end.success else replace(end, view=self._detail(end), by=self._canceller(end))
        if update.doubles:
            # If this fails, the next query lists them again.
            with contextlib.suppress(CommandFailed):
                commands.scancel(ids=update.doubles)

    def failed(self) -> None:
        """Note that a query failed."""
        with self.lock:
            self.tracker.no_response(time.monotonic())

    def _no_response(self, error: CommandFailed) -> None:
        if error.trouble is not Trouble.STOPPED:
            self.outage.begins(error)
            self.failed()

    def _look_up(self, update: Update) -> None:
        """Look up jobs that squeue does not list: in the controller, then in accounting."""
        for job in update.missing[:_LOOKUPS]:
            try:
                view = queries.scontrol_job(job.id, stop=self.stop)
            except CommandFailed as error:
                self._no_response(error)
                return
            if view is None:
                view = self._sacct(job.id, commands.QUERY_S)
                view = view if view and view.state.ended else None
            with self.lock:
                if view:
                    self.tracker.found(time.monotonic(), job, view, update)
                else:
                    self.tracker.not_found(time.monotonic(), job, update)

    def _sacct(self, job: str, timeout_s: float) -> Job | None:
        if time.monotonic() < self._sacct_pauses_until:
            return None
        try:
            return queries.sacct_job(job, timeout_s=timeout_s, stop=self.stop)
        except CommandFailed:
            # The site has no accounting, or it is slow: jobs with a known end must not wait for it each time.
            self._sacct_pauses_until = time.monotonic() + 60
            return None

    def _detail(self, end: End) -> Job:
        """Return the job with fields that squeue does not print, such as the exit code."""
        if end.state == LOST or end.view.exit_code is not None:
            return end.view
        with contextlib.suppress(CommandFailed):
            if more := queries.scontrol_job(end.job, stop=self.stop):
                return replace(end.view, **{name: value for name, value in vars(more).items() if value not in (None, "")})
        return end.view

    def _canceller(self, end: End) -> str | None:
        """Return the user who cancelled a job."""
        deadline = time.monotonic() + _CANCELLER_S
        while end.state == "CANCELLED" and time.monotonic() < deadline and not self.stop.is_set():
            view = self._sacct(end.job, deadline - time.monotonic())
            if view is None and time.monotonic() < self._sacct_pauses_until:
                break
            if view and view.state.by is not None:
                try:
                    return pwd.getpwuid(view.state.by).pw_name
                except KeyError:
                    return f"with id {view.state.by}"
            self.stop.wait(0.5)
        return None
