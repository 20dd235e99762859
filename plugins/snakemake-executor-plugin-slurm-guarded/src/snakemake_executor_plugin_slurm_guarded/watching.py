"""Watch a run's submitted jobs: ask squeue about each, then the controller, then accounting."""

import pwd
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from snakemake_executor_plugin_slurm_guarded import commands, journal, queries, reasons
from snakemake_executor_plugin_slurm_guarded.commands import CommandFailed, Trouble
from snakemake_executor_plugin_slurm_guarded.job_end import LOST, End
from snakemake_executor_plugin_slurm_guarded.queries import Job
from snakemake_executor_plugin_slurm_guarded.submit import Outage
from snakemake_executor_plugin_slurm_guarded.tracking import Look, Tracker

# A canceller's name comes from accounting only, which may lag behind the controller or be slow; the message does not wait longer.
_WHO_S = 3.0
# Jobs looked up one by one in a round.
_LOOKUPS = 8


@dataclass
class Watch:
    """Look at the jobs of one run. One thread looks, while others add to the tracker; ``say`` gets why a job waits.

    ``ended`` has the jobs that have ended, by id, until the caller takes them out.
    """

    run: str
    jobs_file: Path
    tracker: Tracker
    lock: threading.RLock
    outage: Outage
    stop: threading.Event
    say: Callable[[str], None]
    ended: dict[str, End] = field(default_factory=dict)
    _sacct_rests_until: float = 0.0

    def look(self) -> list[str]:
        """Ask once about all jobs; return the ids of doubles, to be cancelled."""
        if not self.tracker.jobs or self.stop.is_set():
            return []
        asked = time.monotonic()
        try:
            listed = queries.squeue([self.run], finished=True, stop=self.stop)
        except CommandFailed as error:
            self._without_answer(error)
            return []
        self.outage.ends()
        with self.lock:
            look = self.tracker.see(time.monotonic(), listed, asked=asked)
        self._search(look)
        for job in look.waiting:
            if job.now:
                self.say(reasons.sentence(job.label, job.id, job.now.reason))
        for job in {job.id: job for job in (*look.changed, *look.waiting)}.values():
            if job.now and not job.now.state.ended:
                facts = {"state": job.now.state.word, "reason": job.now.reason, "nodes": job.now.nodes}
                journal.append(self.jobs_file, "state", run=self.run, job=job.id, **facts)
        # Successes first: they need no further query.
        for end in sorted(look.ended, key=lambda end: not end.success):
            self.ended[end.job] = end if end.success else replace(end, view=self._detail(end), by=self._who(end))
        return look.doubles

    def failed(self) -> None:
        """Note that a look failed: no state changes, and the next one comes later each time."""
        with self.lock:
            self.tracker.no_answer(time.monotonic())

    def _without_answer(self, error: CommandFailed) -> None:
        if error.trouble is not Trouble.STOPPED:
            self.outage.begins(error)
            self.failed()

    def _search(self, look: Look) -> None:
        """Ask about jobs that squeue does not list any more: the controller, then accounting."""
        for job in look.missing[:_LOOKUPS]:
            try:
                view = queries.scontrol_job(job.id, stop=self.stop)
            except CommandFailed as error:
                self._without_answer(error)
                return
            if view is None:
                view = self._sacct(job.id, commands.QUERY_S)
                view = view if view and view.state.ended else None
            with self.lock:
                if view:
                    self.tracker.found(time.monotonic(), job, view, look)
                else:
                    self.tracker.nobody_knows(time.monotonic(), job, look)

    def _sacct(self, job: str, timeout_s: float) -> Job | None:
        if time.monotonic() < self._sacct_rests_until:
            return None
        try:
            return queries.sacct_job(job, timeout_s=timeout_s, stop=self.stop)
        except CommandFailed:
            # None here, or it is slow: jobs whose end is known otherwise must not wait for it each time.
            self._sacct_rests_until = time.monotonic() + 60
            return None

    def _detail(self, end: End) -> Job:
        """Return the job with what squeue does not list of it, such as its exit code."""
        if end.state == LOST or end.view.exit_code is not None:
            return end.view
        try:
            more = queries.scontrol_job(end.job, stop=self.stop)
        except CommandFailed:
            more = None
        stated = {name: value for name, value in vars(more).items() if value not in (None, "")} if more else {}
        return replace(end.view, **stated)

    def _who(self, end: End) -> str | None:
        """Return the user who cancelled a job."""
        until = time.monotonic() + _WHO_S
        while end.state == "CANCELLED" and time.monotonic() < until and not self.stop.is_set():
            view = self._sacct(end.job, until - time.monotonic())
            if view is None and time.monotonic() < self._sacct_rests_until:
                break
            if view and view.state.by is not None:
                try:
                    return pwd.getpwuid(view.state.by).pw_name
                except KeyError:
                    return f"with id {view.state.by}"
            self.stop.wait(0.5)
        return None
