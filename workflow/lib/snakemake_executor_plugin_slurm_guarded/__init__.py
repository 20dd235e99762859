"""Snakemake executor ``slurm-guarded``: submits jobs to Slurm and neither loses one nor waits for one for ever.

It stands on Snakemake's RemoteExecutor and, on the nodes, on the executor slurm-jobstep. What it knows about Slurm is in
``servemark.slurm``. Resources that it reads, named as in snakemake-executor-plugin-slurm: slurm_account, slurm_partition, qos,
constraint, nodes, gres, runtime, mem_mb, cpus_per_task, slurm_extra; and slurm_exclusive (1: whole nodes, all of their memory).

Jobs need the resource ``mpi`` (any text; the profile sets it for all): slurm-jobstep then runs them in the batch step itself. Otherwise
it puts them into a step of one task, which has lost SLURM_CONF and holds the cores that the rules' own srun wants.
"""

import asyncio
import os
import pwd
import shlex
import socket
import threading
import time
import uuid
from collections.abc import AsyncGenerator, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo
from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor
from snakemake_interface_executor_plugins.jobs import JobExecutorInterface
from snakemake_interface_executor_plugins.settings import CommonSettings, ExecutorSettingsBase

from servemark import processes
from servemark.errors import ServemarkError
from servemark.slurm import commands, guard, journal, submit
from servemark.slurm.commands import CommandFailed, Trouble
from servemark.slurm.request import Request
from servemark.slurm.tracking import Bounds, Ended, Look, Pace, Tracked, Tracker
from servemark.slurm.words import LOST, End, explain


def _told(help_text: str) -> dict[str, object]:
    return {"help": help_text, "env_var": False, "required": False}


@dataclass
class ExecutorSettings(ExecutorSettingsBase):
    """Waits are in seconds."""

    logdir: str = field(
        default="",
        metadata=_told(
            "Folder for the jobs' own logs. Default: beside the file that SERVEMARK_JOBS_FILE names, else .snakemake/slurm_logs."
        ),
    )
    requeue: bool = field(
        default=False,
        metadata=_told("Let Slurm start a job again after a node failure or preemption (sbatch --requeue)."),
    )
    first_look: float = field(default=1.0, metadata=_told("From a job's submission to the first look at its state."))
    shortest_interval: float = field(
        default=2.0, metadata=_told("Between looks while jobs are young; grows with a tenth of their time.")
    )
    longest_interval: float = field(default=15.0, metadata=_told("Between looks at jobs that run long."))
    submit_patience: float = field(
        default=600.0, metadata=_told("How long a submission waits for a controller that does not answer.")
    )
    lost_after: float = field(default=30.0, metadata=_told("A job that Slurm does not know for so long is given up."))
    cancel_within: float = field(
        default=6.0,
        metadata=_told("How long the end of an interrupted run waits for scancel; the guard goes on after it."),
    )

    def __post_init__(self) -> None:
        waits = (self.first_look, self.shortest_interval, self.longest_interval, self.lost_after, self.cancel_within)
        if min(waits) <= 0 or self.submit_patience < 0 or self.longest_interval < self.shortest_interval:
            raise WorkflowError(
                "slurm-guarded: waits must be positive, and the longest interval not below the shortest one."
            )


common_settings = CommonSettings(
    non_local_exec=True,
    implies_no_shared_fs=False,
    job_deploy_sources=False,
    pass_default_storage_provider_args=True,
    pass_default_resources_args=True,
    pass_envvar_declarations_to_cmd=False,
    auto_deploy_default_storage_provider=False,
)

# slurm-jobstep takes SLURM_CONF from the environment of what it starts; the rules' own srun needs it where Slurm's configuration
# is at no standard place.
# A job that is cancelled, preempted or out of time has KillWait seconds to end well, but Slurm sends SIGTERM to the steps and to this
# shell alone, and kills all the rest together with the shell. So the shell hands the signal on and stays until its child has ended.
_SCRIPT = """#!/bin/sh
export SERVEMARK_SLURM_CONF="$SLURM_CONF"
trap 'trap "" TERM; kill -TERM 0' TERM
%s &
child=$!
wait $child
code=$?
while kill -0 $child 2>/dev/null; do
  wait $child
  code=$?
done
exit $code
"""
# A canceller's name comes from accounting only, which may lag behind the controller or be slow; the message does not wait longer.
_WHO_S = 3.0
# Jobs asked for one by one in a round.
_LOOKUPS = 8


class Executor(RemoteExecutor):
    """One run's jobs: submitted in a few threads, watched in one."""

    def __init__(self, workflow, logger):
        # Before the base class starts its thread.
        _leave_job_environment()
        settings = workflow.executor_settings
        journal_path = os.environ.get(journal.VARIABLE)
        self._journal = Path(journal_path).absolute() if journal_path else None
        self._run = str(uuid.uuid4())
        self._stop = threading.Event()
        self._cancelled = False
        self._lock = threading.RLock()  # of the tracker and what is below; the base class has a lock of its own
        self._tracker = Tracker(
            Pace(settings.first_look, settings.shortest_interval, settings.longest_interval),
            Bounds(lost_s=settings.lost_after),
            requeue=settings.requeue,
        )
        self._ended: dict[str, End] = {}
        self._submitting = 0
        self._count = 0
        self._sacct_rests_until = 0.0
        self._outage = submit.Outage(lambda text: logger.warning(f"servemark: {text}"))
        self._pool = ThreadPoolExecutor(max_workers=4, thread_name_prefix="sbatch")
        super().__init__(workflow, logger)

    def __post_init__(self) -> None:
        me = processes.myself()
        self.logger.debug(f"All jobs of this run have the name {self._run}")
        journal.append(self._journal, "run", run=self._run, main=str(me), host=socket.gethostname())
        folder = self._journal.parent if self._journal else Path(".snakemake").absolute()
        self._logs = self.workflow.executor_settings.logdir or (
            self._journal.parent if self._journal else folder / "slurm_logs"
        )
        self._logs = Path(self.workflow.workdir_init, self._logs)
        guard.launch(self._run, me, log=folder / "guard.log", jobs_file=self._journal)

    def additional_general_args(self) -> str:
        return "--executor slurm-jobstep --jobs 1"

    # Submitting

    def run_jobs(self, jobs: Iterable[JobExecutorInterface]) -> None:
        for job in jobs:
            self.run_job_pre(job)
            with self._lock:
                self._submitting += 1
            self._pool.submit(self.run_job, job)

    def run_job(self, job: JobExecutorInterface) -> None:
        """Submit one job or group job. Whatever goes wrong is told to the scheduler: an exception in this thread would be lost."""
        label = _label(job)
        try:
            self._submit(job, label)
        except CommandFailed as error:
            if error.trouble is not Trouble.STOPPED:
                self._report_error(job, _refused(label, error))
        except Exception as error:
            self._report_error(job, ServemarkError(f"{label}: could not be submitted: {type(error).__name__}: {error}"))
        finally:
            with self._lock:
                self._submitting -= 1

    def _submit(self, job: JobExecutorInterface, label: str) -> None:
        with self._lock:
            self._count += 1
            token = f"{label.replace('|', ' ')} #{self._count}"
        request = Request.of(job.resources, name=label, threads=job.threads)
        folder = self._logs / _file_name(label)
        folder.mkdir(parents=True, exist_ok=True)
        flags = [
            *request.flags(),
            "--export=ALL",
            "--requeue" if self.workflow.executor_settings.requeue else "--no-requeue",
            f"--chdir={self.workflow.workdir_init}",
            f"--output={str(folder).replace('%', '%%')}/%j.log",
        ]
        script = _SCRIPT % self.format_job_exec(job)
        self.logger.debug(f"sbatch {shlex.join(flags)} <<EOF\n{script}EOF")
        if self._stop.is_set():
            raise CommandFailed(Trouble.STOPPED, ["sbatch"], "")
        number = submit.submit(
            flags,
            script,
            name=self._run,
            token=token,
            patience_s=self.workflow.executor_settings.submit_patience,
            stop=self._stop,
            outage=self._outage,
        )
        log = str(folder / f"{number}.log")
        self.logger.info(f"{label}: submitted as job {number} (log: {log}).")
        facts = {"kind": "group" if job.is_group() else "rule", "name": job.name, "wildcards": _wildcards(job)}
        journal.append(self._journal, "submitted", run=self._run, job=number, label=label, log=log, **facts)
        with self._lock:
            self._tracker.add(Tracked(number, label, token, log, time.monotonic()))
        self.report_job_submission(SubmittedJobInfo(job, external_jobid=number, aux={"log": log}))

    # Watching

    async def check_active_jobs(self, active_jobs: list[SubmittedJobInfo]) -> AsyncGenerator[SubmittedJobInfo, None]:
        try:
            self._look()
        except Exception as error:  # an exception here would end the only thread that watches the jobs
            self.logger.error(f"servemark: a look at the jobs failed: {type(error).__name__}: {error}", exc_info=True)
            with self._lock:
                self._tracker.no_answer(time.monotonic())
        for info in active_jobs:
            end = self._ended.pop(info.external_jobid or "", None)
            if end is None:
                yield info
            else:
                self._report_end(info, end)

    async def sleep(self) -> None:
        """Until the next look is due. Woken by a new job, which is due earlier, and by the end of the run."""
        while not self._stop.is_set():
            with self._lock:
                left = self._tracker.next_look() - time.monotonic()
            if left <= 0:
                return
            await asyncio.sleep(min(left, 0.25))

    def _look(self) -> None:
        if not self._tracker.jobs or self._stop.is_set():
            return
        asked = time.monotonic()
        try:
            listed = commands.squeue([self._run], finished=True, stop=self._stop)
        except CommandFailed as error:
            self._without_answer(error)
            return
        self._outage.ends()
        with self._lock:
            look = self._tracker.see(time.monotonic(), listed, asked=asked)
        self._search(look)
        for job in look.changed:
            if job.now and not job.now.state.ended:
                facts = {"state": job.now.state.word, "reason": job.now.reason, "nodes": job.now.nodes}
                journal.append(self._journal, "state", run=self._run, job=job.id, **facts)
        for ended in look.ended:
            # Successes first: nothing is asked about them.
            if ended.word == "COMPLETED":
                self._keep(ended, None, None)
        for ended in look.ended:
            if ended.word != "COMPLETED":
                self._keep(ended, self._detail(ended), self._who(ended))
        if look.doubles:
            self._try_cancel(ids=look.doubles)

    def _without_answer(self, error: CommandFailed) -> None:
        if error.trouble is not Trouble.STOPPED:
            self._outage.begins(error)
            with self._lock:
                self._tracker.no_answer(time.monotonic())

    def _search(self, look: Look) -> None:
        """Jobs that squeue does not list any more: the controller's own record, else accounting, else nobody knows them."""
        for job in look.missing[:_LOOKUPS]:
            try:
                view = commands.scontrol_job(job.id, stop=self._stop)
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

    def _sacct(self, job: str, timeout_s: float) -> commands.Job | None:
        if time.monotonic() < self._sacct_rests_until:
            return None
        try:
            return commands.sacct([job], timeout_s=timeout_s, stop=self._stop).get(job)
        except CommandFailed:
            # None here, or it is slow: jobs whose end is known otherwise must not wait for it each time.
            self._sacct_rests_until = time.monotonic() + 60
            return None

    def _detail(self, ended: Ended) -> commands.Job | None:
        if ended.word == LOST or (ended.view and ended.view.exit_code is not None):
            return None
        try:
            return commands.scontrol_job(ended.job.id, stop=self._stop)
        except CommandFailed:
            return None

    def _who(self, ended: Ended) -> str | None:
        """Who cancelled a job."""
        until = time.monotonic() + _WHO_S
        while ended.word == "CANCELLED" and time.monotonic() < until and not self._stop.is_set():
            view = self._sacct(ended.job.id, until - time.monotonic())
            if view is None and time.monotonic() < self._sacct_rests_until:
                break
            if view and view.state.by is not None:
                return _user(view.state.by)
            self._stop.wait(0.5)
        return None

    def _keep(self, ended: Ended, detail: commands.Job | None, by: str | None) -> None:
        view = ended.view or commands.Job(ended.job.id, commands.State(""))
        more = detail or view
        end = End(
            job=ended.job.id,
            label=ended.job.label,
            state=ended.word,
            success=ended.word == "COMPLETED",
            exit_code=0 if ended.word == "COMPLETED" else more.exit_code,
            signal=more.signal,
            reason=more.reason or view.reason,
            nodes=more.nodes or view.nodes,
            by=by,
            elapsed_s=more.elapsed_s if more.elapsed_s is not None else view.elapsed_s,
            queue_wait_s=view.queue_wait_s if view.queue_wait_s is not None else more.queue_wait_s,
            limit_min=more.limit_min or view.limit_min,
            log=ended.job.log,
        )
        self._ended[end.job] = end

    def _report_end(self, info: SubmittedJobInfo, end: End) -> None:
        if end.state == LOST:
            end = replace(end, success=all(os.path.exists(str(path)) for path in info.job.output))
        facts = {name: value for name, value in vars(end).items() if name not in ("log", "limit_min")}
        journal.append(self._journal, "ended", run=self._run, **facts)
        if end.success:
            self.report_job_success(info)
        else:
            self._report_error(info.job, explain(end), info)

    def _report_error(
        self, job: JobExecutorInterface, error: ServemarkError, info: SubmittedJobInfo | None = None
    ) -> None:
        # Snakemake drops the message of a group job.
        self.logger.error(f"servemark: {error.message()}")
        try:
            self.report_job_error(info or SubmittedJobInfo(job))
        except Exception:
            # Only telling about it has failed; the scheduler must hear of it all the same.
            self.workflow.scheduler.error_callback(job)

    # Ending

    def cancel(self) -> None:
        """Cancel every job of this run, whatever the base class believes to be active, and end the executor."""
        self._stop.set()
        self._cancel_all()
        self.shutdown()

    def cancel_jobs(self, active_jobs: list[SubmittedJobInfo]) -> None:
        """Part of the interface; :meth:`cancel` does not ask for it."""

    def _cancel_all(self) -> None:
        if self._cancelled:
            return
        self._cancelled = True
        deadline = time.monotonic() + self.workflow.executor_settings.cancel_within
        with self._lock:
            ids, submitting = list(self._tracker.jobs), self._submitting
        if not ids and not submitting and not self._count:
            return
        done = self._try_cancel(deadline=deadline)
        while self._submitting and time.monotonic() < deadline:
            time.sleep(0.05)
        if submitting or not done:
            # One that was on its way has no id yet; its name has it.
            done = self._try_cancel(deadline=deadline)
        if not done:
            self.logger.warning(
                "servemark: Slurm did not take the cancellation in time; the guard goes on trying for 10 min."
            )
        journal.append(self._journal, "cancelled", run=self._run, jobs=ids, taken=done)

    def _try_cancel(self, *, ids: list[str] | None = None, deadline: float | None = None) -> bool:
        left = (deadline - time.monotonic()) if deadline else commands.QUERY_S
        try:
            commands.scancel(name=None if ids else self._run, ids=ids or (), timeout_s=max(0.5, left))
        except CommandFailed as error:
            self.logger.debug(f"{error}")
            return False
        return True

    def shutdown(self) -> None:
        """End the threads. Jobs that have not ended (Snakemake gives up after a fault of its own) are cancelled."""
        self._stop.set()
        if self._tracker.jobs or self._submitting:
            self._cancel_all()
        self._pool.shutdown(wait=True, cancel_futures=True)
        super().shutdown()
        if not self._cancelled:
            journal.append(self._journal, "run_ended", run=self._run)


def _leave_job_environment() -> None:
    """In a Slurm job, forget it: its SLURM_* variables would shape what is submitted. SLURM_CONF names the cluster, and stays."""
    if "SLURM_JOB_ID" in os.environ:
        for name in [
            name for name in os.environ if name.startswith("SLURM_") and name not in ("SLURM_CONF", "SLURM_CONF_SERVER")
        ]:
            del os.environ[name]


def _refused(label: str, error: CommandFailed) -> ServemarkError:
    if error.trouble is Trouble.UNREACHABLE:
        return ServemarkError(
            f"{label}: could not be submitted, because Slurm did not answer: {error.said}",
            do="Run the same command again when `squeue` answers.",
            reason="slurm_unreachable",
        )
    if error.trouble is Trouble.MISSING:
        return ServemarkError(f"{label}: {error}", do="Run on a machine with Slurm's commands.", reason="slurm_missing")
    return ServemarkError(
        f"{label}: Slurm refused it: {error.said}",
        do="Mend the cluster's settings (account, partition, QOS, nodes, GPUs, time), then run again.",
        reason="slurm_refused",
    )


def _members(job: JobExecutorInterface) -> list[JobExecutorInterface]:
    return list(job.jobs) if job.is_group() else [job]


def _wildcards(job: JobExecutorInterface) -> dict[str, str]:
    """The wildcards whose value is the same in all jobs of a group."""
    every = [dict(member.wildcards.items()) for member in _members(job)]
    return {name: value for name, value in every[0].items() if all(other.get(name) == value for other in every)}


def _label(job: JobExecutorInterface) -> str:
    wildcards = _wildcards(job)
    if job.is_group() and "deployment" in wildcards:
        return f"deployment {wildcards['deployment']}"
    values = ", ".join(f"{name}={value}" for name, value in sorted(wildcards.items()))
    return f"{job.name} ({values})" if values else str(job.name)


def _file_name(label: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-_.=" else "_" for letter in label)


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"with id {number}"
