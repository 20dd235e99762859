"""The executor: submits a run's jobs, reports their ends to Snakemake, and cancels what is left at the run's end."""

import asyncio
import itertools
import os
import re
import shlex
import socket
import threading
import time
import uuid
from collections.abc import AsyncGenerator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo
from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor
from snakemake_interface_executor_plugins.jobs import JobExecutorInterface
from snakemake_interface_executor_plugins.logging import LoggerExecutorInterface
from snakemake_interface_executor_plugins.workflow import WorkflowExecutorInterface

from snakemake_executor_plugin_slurm_guarded import commands, guard, journal, leftovers, preflight, submit
from snakemake_executor_plugin_slurm_guarded.commands import CONF_VARIABLE, CommandFailed, Trouble
from snakemake_executor_plugin_slurm_guarded.errors import TERMS, GuardedError
from snakemake_executor_plugin_slurm_guarded.reasons import LOST, End, explain
from snakemake_executor_plugin_slurm_guarded.records import Checkout
from snakemake_executor_plugin_slurm_guarded.request import Request
from snakemake_executor_plugin_slurm_guarded.tracking import Timing, Tracked, Tracker, Watch

# slurm-jobstep removes SLURM_CONF from the job's environment, but the rules' own srun needs it if Slurm's configuration is at no standard
# place. A job that is cancelled, preempted or out of time has KillWait seconds to end cleanly. Slurm sends SIGTERM only to the steps and to
# this shell, and kills the rest when the shell ends. So the shell forwards the signal and stays until its child has ended.
_SCRIPT = f"""#!/bin/sh
export {CONF_VARIABLE}="$SLURM_CONF"
trap 'trap "" TERM; kill -TERM 0' TERM
%s &
child=$!
wait $child
code=$?
while kill -0 $child 2>/dev/null; do
  wait $child
  code=$?
done
if [ $code -gt 128 ]; then
  wait $child
  again=$?
  [ $again -eq 127 ] || code=$again
fi
exit $code
"""


class Executor(RemoteExecutor):
    """The jobs of one run. A few threads submit them, one thread watches them."""

    def __init__(self, workflow: WorkflowExecutorInterface, logger: LoggerExecutorInterface):
        # Before the base class starts its thread.
        _leave_job_environment()
        self._settings = settings = workflow.executor_settings
        self._journal = journal.place()
        self._run = str(uuid.uuid4())
        self._stop = threading.Event()
        self._cancelled = False
        self._lock = threading.RLock()  # for the tracker; the base class has its own lock
        timing = Timing(settings.first_look, settings.shortest_interval, settings.longest_interval, settings.lost_after)
        self._tracker = Tracker(timing, requeue=settings.requeue)
        self._submissions: list[Future[None]] = []
        self._numbers = itertools.count(1)
        self._outage = submit.Outage(self._warn)
        self._watch = Watch(self._run, self._journal, self._tracker, self._lock, self._outage, self._stop, self._say)
        self._pool = ThreadPoolExecutor(max_workers=4, thread_name_prefix="sbatch")
        super().__init__(workflow, logger)

    def __post_init__(self) -> None:
        folder, me = Path(self.workflow.workdir_init), str(guard.identity(os.getpid()))
        self.logger.debug(f"The name of all jobs of this run is {self._run}")
        try:
            leftovers.cancel([self._journal], folder, self._warn, ended_alone=True)
        except GuardedError as error:
            raise WorkflowError(_prefixed(error.message())) from error
        checkout = Checkout.of(folder).model_dump()
        journal.append(self._journal, "run", run=self._run, main=me, host=socket.gethostname(), checkout=checkout)
        self._logs = folder / (self._settings.logdir or self._journal.parent)
        guard.launch(self._run, me, log=self._journal.with_name("guard.log"), jobs_file=self._journal)

    def _say(self, text: str) -> None:
        self.logger.info(_prefixed(text))

    def _warn(self, text: str) -> None:
        self.logger.warning(_prefixed(text))

    def additional_general_args(self) -> str:
        """Return the arguments of every job's own Snakemake."""
        return "--executor slurm-jobstep --jobs 1"

    # Submitting

    def run_jobs(self, jobs: Iterable[JobExecutorInterface]) -> None:
        """Hand jobs to the threads that submit them."""
        for job in jobs:
            self.run_job_pre(job)
            self._submissions.append(self._pool.submit(self.run_job, job))

    def run_job(self, job: JobExecutorInterface) -> None:
        """Submit one job or group job. Every error goes to the scheduler, as an exception in this thread would be lost."""
        label = label_of(job)
        try:
            self._submit(job, label)
        except CommandFailed as error:
            if error.trouble is not Trouble.STOPPED:
                self._report_error(job, error.for_user(f"{label}: could not be submitted", refused=preflight.remedy(error.said)))
        except Exception as error:
            why = f"{label}: could not be submitted: {type(error).__name__}: {error}"
            self._report_error(job, GuardedError(why, reason="slurm_not_submitted"))

    def _submit(self, job: JobExecutorInterface, label: str) -> None:
        token = f"{label.replace('|', ' ')} #{next(self._numbers)}"
        request = Request.of(job.resources, name=label, threads=job.threads)
        folder = self._logs / re.sub(r"[^\w.=-]", "_", label)
        folder.mkdir(parents=True, exist_ok=True)
        flags = request.flags(
            "--export=ALL",
            "--requeue" if self._settings.requeue else "--no-requeue",
            f"--chdir={self.workflow.workdir_init}",
            f"--output={str(folder).replace('%', '%%')}/%j.log",
        )
        script = _SCRIPT % self.format_job_exec(job)
        self.logger.debug(f"sbatch {shlex.join(flags)} <<EOF\n{script}EOF")
        if self._stop.is_set():
            raise CommandFailed(Trouble.STOPPED, ["sbatch"], "")
        number = submit.submit(
            flags,
            script,
            name=self._run,
            token=token,
            patience_s=self._settings.submit_patience,
            stop=self._stop,
            outage=self._outage,
        )
        log = str(folder / f"{number}.log")
        self.logger.info(f"{label}: submitted as job {number} (log: {log}).")
        facts = {"kind": "group" if job.is_group() else "rule", "name": job.name, "wildcards": wildcards(job)}
        journal.append(self._journal, "submitted", run=self._run, job=number, label=label, log=log, **facts)
        with self._lock:
            self._tracker.add(Tracked(number, label, token, log, time.monotonic()))
        self.report_job_submission(SubmittedJobInfo(job, external_jobid=number, aux={"log": log}))

    # Watching

    async def check_active_jobs(self, active_jobs: list[SubmittedJobInfo]) -> AsyncGenerator[SubmittedJobInfo, None]:
        """Yield the jobs that are still active; report the others."""
        try:
            self._watch.query()
        except Exception as error:  # an exception here would end the only thread that watches the jobs
            self.logger.error(_prefixed(f"querying the jobs failed: {type(error).__name__}: {error}"), exc_info=True)
            self._watch.failed()
        for info in active_jobs:
            end = self._watch.ended.pop(info.external_jobid or "", None)
            if end is None:
                yield info
            else:
                self._report_end(info, end)

    async def sleep(self) -> None:
        """Sleep until the next query is due (a new job may bring it forward). Return at the run's end."""
        while not self._stop.is_set():
            with self._lock:
                left = self._tracker.next_query() - time.monotonic()
            if left <= 0:
                return
            await asyncio.sleep(min(left, 0.25))

    def _report_end(self, info: SubmittedJobInfo, end: End) -> None:
        if end.state == LOST:
            end = replace(end, success=all(os.path.exists(str(path)) for path in info.job.output))
        facts = {name: getattr(end, name) for name in ("job", "label", "state", "success", "by")}
        facts |= {name: getattr(end.view, name) for name in ("reason", "nodes", "elapsed_s", "queue_wait_s", "exit_code", "signal")}
        facts |= {"exit_code": 0} if end.state == "COMPLETED" else {}
        journal.append(self._journal, "ended", run=self._run, **facts)
        if end.success:
            self.report_job_success(info)
        else:
            self._report_error(info.job, explain(end), info)

    def _report_error(self, job: JobExecutorInterface, error: GuardedError, info: SubmittedJobInfo | None = None) -> None:
        # Snakemake drops the message of a group job.
        self.logger.error(_prefixed(error.message()))
        try:
            self.report_job_error(info or SubmittedJobInfo(job))
        except Exception:
            # Only the message has failed. The scheduler still needs the report.
            self.workflow.scheduler.error_callback(job)

    # Ending

    def cancel(self) -> None:
        """Cancel every job of this run, also jobs that the base class does not list as active, and end the executor."""
        self._stop.set()
        self._cancel_all()
        self.shutdown()

    def cancel_jobs(self, active_jobs: list[SubmittedJobInfo]) -> None:
        """Do nothing: the interface requires this method, and :meth:`cancel` does not use it."""

    def _cancel_all(self) -> None:
        if self._cancelled or not self._submissions:
            return
        self._cancelled = True
        submitting = self._submitting()
        with self._lock:
            ids = list(self._tracker.jobs)
        deadline = time.monotonic() + self._settings.cancel_within
        done = self._try_cancel(deadline)
        while self._submitting() and time.monotonic() < deadline:
            time.sleep(0.05)
        if submitting or not done:
            # A job whose submission was under way has no id yet, but it has the run's name.
            done = self._try_cancel(deadline)
        if not done:
            self._warn("Slurm did not accept the cancellation in time. The guard process retries for 10 min.")
        journal.append(self._journal, "cancelled", run=self._run, jobs=ids, taken=done)

    def _submitting(self) -> bool:
        return any(not submission.done() for submission in self._submissions)

    def _try_cancel(self, deadline: float) -> bool:
        try:
            commands.scancel(name=self._run, timeout_s=max(0.5, deadline - time.monotonic()))
        except CommandFailed as error:
            self.logger.debug(f"{error}")
            return False
        return True

    def shutdown(self) -> None:
        """Cancel jobs that have not ended (Snakemake stops after an internal error) and end the threads."""
        self._stop.set()
        if self._tracker.jobs or self._submitting():
            self._cancel_all()
        self._pool.shutdown(wait=True, cancel_futures=True)
        super().shutdown()
        if not self._cancelled:
            journal.append(self._journal, "run_ended", run=self._run)


def _prefixed(text: str) -> str:
    return f"{TERMS['speaker']}: {text}"


def label_of(job: JobExecutorInterface) -> str:
    """Return ``RULE (WILDCARD=VALUE, ...)``; for a group, the wildcards that its jobs share: ``sample A``."""
    shared = sorted(wildcards(job).items())
    if job.is_group() and shared:
        return ", ".join(f"{name} {value}" for name, value in shared)
    values = ", ".join(f"{name}={value}" for name, value in shared)
    return f"{job.name} ({values})" if values else str(job.name)


def wildcards(job: JobExecutorInterface) -> dict[str, str]:
    """Return the wildcards of a job; for a group, the wildcards with the same value in all of its jobs."""
    members = list(job.jobs) if job.is_group() else [job]
    every = [dict(member.wildcards.items()) for member in members]
    return {name: value for name, value in every[0].items() if all(other.get(name) == value for other in every)}


def _leave_job_environment() -> None:
    """In a Slurm job, remove its SLURM_* variables, which would change what we submit. SLURM_CONF names the cluster and stays."""
    if "SLURM_JOB_ID" in os.environ:
        for name in list(os.environ):
            if name.startswith("SLURM_") and name not in ("SLURM_CONF", "SLURM_CONF_SERVER"):
                del os.environ[name]
