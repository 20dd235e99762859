"""Track the jobs of one run: a state machine over Slurm's output. It asks nothing and waits for nothing itself.

Sources of a job's state, in this order: ``squeue`` (live jobs, and ended ones for MinJobAge), ``scontrol show job`` (slurmctld's own
record), ``sacct`` (accounting, where there is any). A job that none of them lists is looked up a few times more, then given up as LOST.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from snakemake_executor_plugin_slurm_guarded import reasons
from snakemake_executor_plugin_slurm_guarded.job_end import LOST, STUCK, End
from snakemake_executor_plugin_slurm_guarded.queries import Job
from snakemake_executor_plugin_slurm_guarded.states import REQUEUED_BY_SLURM, Meaning, State

_LONGEST_BACKOFF_S = 30.0


@dataclass(frozen=True)
class Pace:
    """How often to look, in seconds. ``share``: of the time that a job has run so far, so that a late look costs at most that share."""

    first: float = 1.0
    shortest: float = 2.0
    longest: float = 15.0
    share: float = 0.1

    def interval(self, age: float) -> float:
        """Return the seconds between two looks at a job that has waited or run for ``age`` seconds."""
        return min(self.longest, max(self.shortest, self.share * age))

    def floor(self, jobs: int) -> float:
        """Return the seconds between any two looks: 5 s for 50 jobs, so that many short jobs cost 12 looks a minute."""
        return min(max(self.shortest, 0.1 * jobs), max(self.shortest, 5.0))


@dataclass(frozen=True)
class Bounds:
    """Limits, in seconds and looks.

    Attributes:
        lost_s, lost_looks: a job that nobody knows for so long and so many looks, with the controller responding, is LOST.
        stuck_s: a job that stays COMPLETING for so long is STUCK; Slurm's UnkillableStepTimeout is 60 s by default.
        waits_s: a job that is in the queue for so long waits; its reason is printed then.
        requeue_s: an end after which Slurm may requeue the job must last this long.
    """

    lost_s: float = 30.0
    lost_looks: int = 3
    stuck_s: float = 300.0
    waits_s: float = 5.0
    requeue_s: float = 10.0


@dataclass
class Tracked:
    """One job that we wait for. Times are ``time.monotonic()``; ``told`` has the reasons of its waiting that the user has read."""

    id: str
    label: str
    token: str
    log: str
    submitted: float
    now: Job | None = None
    running_since: float | None = None
    missing_since: float | None = None
    missing_looks: int = 0
    ending_since: float | None = None
    ended_since: float | None = None
    told: set[str] = field(default_factory=set)

    def age(self, now: float) -> float:
        """Return the seconds that it has run, or waited when it does not run yet."""
        return now - (self.running_since if self.running_since is not None else self.submitted)


@dataclass
class Look:
    """The result of one look at the queue.

    Attributes:
        ended: jobs that have ended; they are tracked no longer.
        missing: jobs that squeue does not list; call :meth:`Tracker.found` or :meth:`Tracker.nobody_knows` for each.
        changed: jobs whose state is another than at the look before.
        waiting: jobs in the queue for a reason that the user has not read yet.
        doubles: ids of jobs that were submitted twice (an sbatch that seemed to fail); they are to be cancelled.
    """

    ended: list[End] = field(default_factory=list)
    missing: list[Tracked] = field(default_factory=list)
    changed: list[Tracked] = field(default_factory=list)
    waiting: list[Tracked] = field(default_factory=list)
    doubles: list[str] = field(default_factory=list)


class Tracker:
    """The jobs of one run that have not ended."""

    def __init__(self, pace: Pace | None = None, bounds: Bounds | None = None, *, requeue: bool = False):
        self.pace, self.bounds, self._requeue = pace or Pace(), bounds or Bounds(), requeue
        self.jobs: dict[str, Tracked] = {}
        self._tokens: dict[str, str] = {}
        self._last_look = float("-inf")
        self._silent_looks = 0

    def add(self, job: Tracked) -> None:
        """Wait for this job from now on."""
        self.jobs[job.id] = job
        self._tokens[job.token] = job.id

    def next_look(self) -> float:
        """Return when to look next (``time.monotonic()``); infinity without jobs."""
        if not self.jobs:
            return float("inf")
        if self._silent_looks:
            return self._last_look + min(_LONGEST_BACKOFF_S, self.pace.shortest * 2.0**self._silent_looks)
        due = min(
            job.submitted + self.pace.first
            if job.now is None and job.missing_since is None
            else self._last_look + self.pace.interval(job.age(self._last_look))
            for job in self.jobs.values()
        )
        return max(due, self._last_look + self.pace.floor(len(self.jobs)))

    def see(self, now: float, listed: Iterable[Job], *, asked: float | None = None) -> Look:
        """Take in squeue's list of this run's jobs at ``now``; a job submitted after ``asked``, the query's start, cannot be missing."""
        self._last_look, self._silent_looks = now, 0
        views = {view.id: view for view in listed}
        look = Look()
        for job in list(self.jobs.values()):
            view = views.get(job.id)
            if view is not None:
                self.found(now, job, view, look)
            elif job.submitted <= (now if asked is None else asked):
                look.missing.append(job)
        look.doubles = [view.id for view in views.values() if self._tokens.get(view.comment, view.id) != view.id and not view.state.ended]
        return look

    def no_answer(self, now: float) -> None:
        """Note that the controller did not respond: no state changes, and the next look comes later each time."""
        self._last_look = now
        self._silent_looks = min(self._silent_looks + 1, 10)

    def nobody_knows(self, now: float, job: Tracked, look: Look) -> None:
        """Note that the controller responds, and neither it nor accounting knows the end of this job."""
        if job.missing_since is None:
            job.missing_since = now
        job.missing_looks += 1
        if now - job.missing_since >= self.bounds.lost_s and job.missing_looks >= self.bounds.lost_looks:
            self._end(job, LOST, look)

    def found(self, now: float, job: Tracked, view: Job, look: Look) -> None:
        """Take in a job as squeue or the controller lists it, or its end from accounting.

        That accounting calls a job running which the controller has forgotten is no news: call :meth:`nobody_knows`.
        """
        if job.now is None or job.now.state != view.state:
            look.changed.append(job)
        job.now, job.missing_since, job.missing_looks = view, None, 0
        meaning, reason = view.state.meaning, reasons.code(view.reason)
        if meaning is Meaning.WAITING and reason and reason not in job.told and now - job.submitted >= self.bounds.waits_s:
            job.told.add(reason)
            look.waiting.append(job)
        job.running_since = self._since(job.running_since, now, meaning is Meaning.RUNNING, view.elapsed_s or 0.0)
        job.ending_since = self._since(job.ending_since, now, meaning is Meaning.ENDING)
        job.ended_since = self._since(job.ended_since, now, view.state.ended)
        if job.ended_since is not None:
            may_come_back = (self._requeue or view.requeue) and view.state.word in REQUEUED_BY_SLURM
            if not may_come_back or now - job.ended_since >= self.bounds.requeue_s:
                self._end(job, view.state.word, look)
        elif job.ending_since is not None and now - job.ending_since >= self.bounds.stuck_s:
            self._end(job, STUCK, look)

    @staticmethod
    def _since(before: float | None, now: float, holds: bool, already: float = 0.0) -> float | None:
        if not holds:
            return None
        return before if before is not None else now - already

    def _end(self, job: Tracked, word: str, look: Look) -> None:
        del self.jobs[job.id]
        look.ended.append(End(job.id, job.label, job.log, word, word == "COMPLETED", job.now or Job(job.id, State(""))))
