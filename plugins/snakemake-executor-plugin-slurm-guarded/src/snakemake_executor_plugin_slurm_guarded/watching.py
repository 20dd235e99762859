"""Watch a run's submitted jobs: ask squeue about each, then the controller, then accounting."""

import pwd
import threading
import time
from collections.abc import Callable
from pathlib import Path

from snakemake_executor_plugin_slurm_guarded import commands, journal, queries, reasons
from snakemake_executor_plugin_slurm_guarded.commands import CommandFailed, Trouble
from snakemake_executor_plugin_slurm_guarded.job_end import LOST, End
from snakemake_executor_plugin_slurm_guarded.queries import Job
from snakemake_executor_plugin_slurm_guarded.states import State
from snakemake_executor_plugin_slurm_guarded.submit import Outage
from snakemake_executor_plugin_slurm_guarded.tracking import Ended, Look, Tracker

# A canceller's name comes from accounting only, which may lag behind the controller or be slow; the message does not wait longer.
_WHO_S = 3.0
# Jobs asked for one by one in a round.
_LOOKUPS = 8


class Watch:
    """Look at the jobs of one run. One thread looks; ``ended`` has the jobs that have ended, by id, until the caller takes them out.

    Args:
        run: the name of all jobs of the run.
        journal_path: where states are noted.
        tracker: the jobs; other threads add to it.
        lock: of the tracker.
        outage: reports that Slurm does not respond, and that it does again.
        stop: when set, a question is given up.
        say: gets why a job waits.
    """

    def __init__(
        self,
        run: str,
        journal_path: Path,
        tracker: Tracker,
        lock: threading.RLock,
        outage: Outage,
        stop: threading.Event,
        say: Callable[[str], None],
    ):
        self._run, self._journal, self._tracker, self._lock = run, journal_path, tracker, lock
        self._outage, self._stop, self._say = outage, stop, say
        self._sacct_rests_until = 0.0
        self.ended: dict[str, End] = {}

    def look(self) -> list[str]:
        """Ask once about all jobs; return the ids of doubles, to be cancelled."""
        if not self._tracker.jobs or self._stop.is_set():
            return []
        asked = time.monotonic()
        try:
            listed = queries.squeue([self._run], finished=True, stop=self._stop)
        except CommandFailed as error:
            self._without_answer(error)
            return []
        self._outage.ends()
        with self._lock:
            look = self._tracker.see(time.monotonic(), listed, asked=asked)
        self._search(look)
        for job in look.waiting:
            if job.now:
                self._say(reasons.sentence(job.label, job.id, job.now.reason))
        for job in {job.id: job for job in (*look.changed, *look.waiting)}.values():
            if job.now and not job.now.state.ended:
                facts = {"state": job.now.state.word, "reason": job.now.reason, "nodes": job.now.nodes}
                journal.append(self._journal, "state", run=self._run, job=job.id, **facts)
        # Successes first: nothing is asked about them.
        for ended in sorted(look.ended, key=lambda ended: ended.word != "COMPLETED"):
            self.ended[ended.job.id] = self._end(ended)
        return look.doubles

    def failed(self) -> None:
        """Note that a look failed: no state changes, and the next one comes later each time."""
        with self._lock:
            self._tracker.no_answer(time.monotonic())

    def _without_answer(self, error: CommandFailed) -> None:
        if error.trouble is not Trouble.STOPPED:
            self._outage.begins(error)
            self.failed()

    def _search(self, look: Look) -> None:
        """Ask about jobs that squeue does not list any more: the controller, then accounting."""
        for job in look.missing[:_LOOKUPS]:
            try:
                view = queries.scontrol_job(job.id, stop=self._stop)
            except CommandFailed as error:
                self._without_answer(error)
                return
            if view is None:
                view = self._sacct(job.id, commands.QUERY_S)
                view = view if view and view.state.ended else None
            with self._lock:
                if view:
                    self._tracker.found(time.monotonic(), job, view, look)
                else:
                    self._tracker.nobody_knows(time.monotonic(), job, look)

    def _sacct(self, job: str, timeout_s: float) -> Job | None:
        if time.monotonic() < self._sacct_rests_until:
            return None
        try:
            return queries.sacct_job(job, timeout_s=timeout_s, stop=self._stop)
        except CommandFailed:
            # None here, or it is slow: jobs whose end is known otherwise must not wait for it each time.
            self._sacct_rests_until = time.monotonic() + 60
            return None

    def _detail(self, ended: Ended) -> Job | None:
        if ended.word == LOST or (ended.view and ended.view.exit_code is not None):
            return None
        try:
            return queries.scontrol_job(ended.job.id, stop=self._stop)
        except CommandFailed:
            return None

    def _who(self, ended: Ended) -> str | None:
        """Return the user who cancelled a job."""
        until = time.monotonic() + _WHO_S
        while ended.word == "CANCELLED" and time.monotonic() < until and not self._stop.is_set():
            view = self._sacct(ended.job.id, until - time.monotonic())
            if view is None and time.monotonic() < self._sacct_rests_until:
                break
            if view and view.state.by is not None:
                return _user(view.state.by)
            self._stop.wait(0.5)
        return None

    def _end(self, ended: Ended) -> End:
        view, success = ended.view or Job(ended.job.id, State("")), ended.word == "COMPLETED"
        more = view if success else self._detail(ended) or view
        return End(
            job=ended.job.id,
            label=ended.job.label,
            state=ended.word,
            success=success,
            exit_code=0 if success else more.exit_code,
            signal=more.signal,
            reason=more.reason or view.reason,
            nodes=more.nodes or view.nodes,
            by=None if success else self._who(ended),
            elapsed_s=view.elapsed_s if more.elapsed_s is None else more.elapsed_s,
            queue_wait_s=more.queue_wait_s if view.queue_wait_s is None else view.queue_wait_s,
            limit_min=more.limit_min or view.limit_min,
            log=ended.job.log,
        )


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"with id {number}"
