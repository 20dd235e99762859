"""The executor in failure cases, with scripts in place of Slurm's commands and a fake scheduler."""

from __future__ import annotations

import logging
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from slurm_tools import AWAY, MakeTool
from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_executor_plugins.registry import ExecutorPluginRegistry

import snakemake_executor_plugin_slurm_guarded as plugin
from snakemake_executor_plugin_slurm_guarded import executor as executor_module
from snakemake_executor_plugin_slurm_guarded import guard, journal, queries, submit


class Job:
    """The part of Snakemake's job that the executor uses."""

    def __init__(self, name: str = "single", output: tuple[str, ...] = (), broken: bool = False, **resources: Any):
        self.name, self.output, self.broken = name, output, broken
        self.wildcards: dict[str, str] = {"name": "a"}
        self.resources = resources
        self.threads = 1

    def is_group(self) -> bool:
        return False

    def register(self, external_jobid: str | None = None) -> None:
        pass

    def log_info(self) -> None:
        pass

    def log_error(self, msg: str | None = None, **_: Any) -> None:
        if self.broken:
            raise AttributeError("'GroupJob' object has no attribute 'rule'")


class Scheduler:
    def __init__(self) -> None:
        self.done: list[Any] = []
        self.failed: list[Any] = []
        self.fault: BaseException | None = None

    def submit_callback(self, job: Any) -> None: ...

    def finish_callback(self, job: Any) -> None:
        self.done.append(job)

    def error_callback(self, job: Any) -> None:
        self.failed.append(job)

    def executor_error_callback(self, error: BaseException) -> None:
        self.fault = error


class Group(Job):
    def __init__(self, **rest: Any):
        super().__init__("deployment_first_second", broken=True, **rest)
        self.jobs = [Job("first"), Job("second")]
        for member, point in zip(self.jobs, ("p1", "p2"), strict=True):
            member.wildcards = {"deployment": "big", "point": point}

    def is_group(self) -> bool:
        return True


@pytest.fixture
def tool(tool: MakeTool) -> MakeTool:
    tool("scancel", "")
    tool("sacct", "echo 'Slurm accounting storage is disabled' >&2; exit 1")
    return tool


@pytest.fixture
def executor(
    tmp_path: Path, tool: MakeTool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> Iterator[plugin.Executor]:
    (tmp_path / ".snakemake").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(journal.VARIABLE, str(tmp_path / "jobs.jsonl"))
    monkeypatch.setattr(guard, "launch", lambda *_, **__: None)
    monkeypatch.setattr(plugin.Executor, "format_job_exec", lambda self, job: "true")
    monkeypatch.setattr(submit, "_FIRST_PAUSE_S", 0.1)
    monkeypatch.setattr(submit, "_SETTLE_S", 0.1)
    remote = SimpleNamespace(
        max_status_checks_per_second=10,
        jobname="{jobid}",
        jobscript=None,
        seconds_between_status_checks=1,
        immediate_submit=False,
    )
    settings = plugin.ExecutorSettings(
        first_look=0.1, shortest_interval=0.1, longest_interval=0.2, lost_after=0.5, submit_patience=5, cancel_within=2
    )
    workflow = SimpleNamespace(
        remote_execution_settings=remote,
        storage_settings=SimpleNamespace(shared_fs_usage=frozenset(["sources"])),
        executor_settings=settings,
        executor_plugin=SimpleNamespace(common_settings=plugin.common_settings),
        scheduler=Scheduler(),
        workdir_init=str(tmp_path),
        main_snakefile="Snakefile",
        dag=None,
    )
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(plugin.Executor, "snakefile", "Snakefile", raising=False)
    made = plugin.Executor(workflow, logging.getLogger("executor"))
    yield made
    made.shutdown()
    assert not made.wait_thread.is_alive() and workflow.scheduler.fault is None


def until(ready: Any, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.02)


def row(state: str, rest: str = "0:42|5:00|N/A|N/A|node1|None|run|x|/w") -> str:
    return f"echo '7|{state}|{rest}'"


def ended(executor: plugin.Executor) -> list[dict[str, Any]]:
    return [entry for entry in journal.read(Path("jobs.jsonl")) if entry["event"] == "ended"]


def test_snakemake_finds_the_plugin() -> None:
    found = ExecutorPluginRegistry().get_plugin("slurm-guarded")
    assert found.executor is plugin.Executor and found.common_settings.non_local_exec


@pytest.mark.parametrize("wrong", [{"first_look": 0}, {"longest_interval": 1}, {"submit_patience": -1}])
def test_invalid_settings_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(WorkflowError):
        plugin.ExecutorSettings(**wrong)  # type: ignore[arg-type]


def test_success(executor: plugin.Executor, tool: MakeTool) -> None:
    calls = tool("sbatch", "cat > /dev/null; echo 7")
    tool("squeue", f"[ $N -gt 2 ] && {row('COMPLETED')} || {row('RUNNING')}")
    job = Job(slurm_partition="p; touch pwned", runtime=5)
    executor.run_jobs([job])
    until(lambda: executor.workflow.scheduler.done == [job])
    flags = calls.read_text()
    assert "--partition=p; touch pwned --time=5" in flags and "--no-requeue" in flags and not Path("pwned").exists()
    assert [entry["event"] for entry in journal.read(Path("jobs.jsonl"))] == ["run", "submitted", "state", "ended"]


@pytest.mark.parametrize(
    ("squeue", "scontrol", "state"),
    [
        (row("CANCELLED"), "", "CANCELLED"),
        (row("PREEMPTED"), "exit 1", "PREEMPTED"),
        (row("NODE_FAIL"), "sleep 30", "NODE_FAIL"),
        ("", "echo 'JobId=7 JobState=TIMEOUT ExitCode=0:0'", "TIMEOUT"),
        ("", "echo 'Invalid job id specified' >&2; exit 1", "LOST"),
        (f"[ $N -gt 3 ] && {row('FAILED')} || {{ {AWAY}; }}", "", "FAILED"),
        (f"[ $N -gt 3 ] && {row('FAILED')} || echo nonsense", "", "FAILED"),
        (f"[ $N -gt 3 ] && {row('FAILED')} || {row('UNKNOWN')}", "", "FAILED"),
    ],
)
def test_every_end_is_reported(
    executor: plugin.Executor,
    tool: MakeTool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    squeue: str,
    scontrol: str,
    state: str,
) -> None:
    if scontrol == "sleep 30":
        monkeypatch.setattr(queries.scontrol_job, "__kwdefaults__", {"timeout_s": 1.0, "stop": None})
    tool("sbatch", "cat > /dev/null; echo 7")
    tool("squeue", squeue)
    tool("scontrol", scontrol)
    job = Job(output=("result",))
    executor.run_jobs([job])
    until(lambda: executor.workflow.scheduler.failed == [job])
    assert [entry["state"] for entry in ended(executor)] == [state]
    assert "single (name=a) (job 7): " in caplog.text and "7.log" in caplog.text
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) in (0, 2), "an outage is reported once, and its end"


def test_lost_job_with_all_outputs_is_a_success(executor: plugin.Executor, tool: MakeTool) -> None:
    tool("sbatch", "cat > /dev/null; echo 7")
    tool("squeue", "")
    tool("scontrol", "echo 'Invalid job id specified' >&2; exit 1")
    Path("result").touch()
    job = Job(output=("result",))
    executor.run_jobs([job])
    until(lambda: executor.workflow.scheduler.done == [job])
    assert [(entry["state"], entry["success"]) for entry in ended(executor)] == [("LOST", True)]


@pytest.mark.parametrize("resources", [{}, {"slurm_extra": "--x='"}, {"nodes": "many"}])
def test_refused_group_job_fails_at_once(
    executor: plugin.Executor, tool: MakeTool, caplog: pytest.LogCaptureFixture, resources: dict[str, Any]
) -> None:
    tool("sbatch", "echo 'Invalid account' >&2; exit 1")
    job = Group(**resources)
    executor.run_jobs([job])
    until(lambda: executor.workflow.scheduler.failed == [job])
    assert "deployment big: " in caplog.text


def test_error_in_a_query_ends_neither_thread_nor_job(
    executor: plugin.Executor, tool: MakeTool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tool("sbatch", "cat > /dev/null; echo 7")
    tool("squeue", row("COMPLETED"))
    real, faults = queries.squeue, iter([RuntimeError("odd"), OSError("full")])

    def squeue(*args: Any, **rest: Any) -> list[queries.Job]:
        if fault := next(faults, None):
            raise fault
        return real(*args, **rest)

    monkeypatch.setattr(queries, "squeue", squeue)
    job = Job()
    executor.run_jobs([job])
    until(lambda: executor.workflow.scheduler.done == [job])
    assert "odd" in caplog.text and "full" in caplog.text


@pytest.mark.parametrize(
    ("sbatch", "squeue"),
    [
        ("cat > /dev/null; echo 7", "sleep 30"),
        ("cat > /dev/null; sleep 30", ""),
        (AWAY, AWAY),
        ("cat > /dev/null; echo 7", row("PENDING")),
    ],
    ids=["in a status query", "in a submission", "waiting for the controller", "idle"],
)
def test_cancel_is_by_name_and_bounded(executor: plugin.Executor, tool: MakeTool, sbatch: str, squeue: str) -> None:
    submitted, asked, cancelled = tool("sbatch", sbatch), tool("squeue", squeue), tool("scancel", "")
    executor.run_jobs([Job()])
    until(submitted.exists)
    if "echo 7" in sbatch:
        until(asked.exists)
    begin = time.monotonic()
    executor.cancel()
    assert time.monotonic() - begin < 25
    assert f"--quiet --user={os.getuid()} --name={executor._run}" in cancelled.read_text()
    assert not journal.closed(Path("jobs.jsonl"), executor._run)


def test_cancel_without_a_controller_is_bounded(executor: plugin.Executor, tool: MakeTool, caplog: pytest.LogCaptureFixture) -> None:
    tool("sbatch", "cat > /dev/null; echo 7")
    tool("squeue", row("RUNNING"))
    tool("scancel", "sleep 30")
    executor.run_jobs([Job()])
    until(lambda: executor._tracker.jobs)
    begin = time.monotonic()
    executor.cancel()
    assert time.monotonic() - begin < 25 and "guard" in caplog.text


def test_cancel_without_a_job_runs_no_command(executor: plugin.Executor, tool: MakeTool) -> None:
    cancelled = tool("scancel", "")
    executor.cancel()
    assert not cancelled.exists()


def test_double_submission_is_cancelled(executor: plugin.Executor, tool: MakeTool) -> None:
    tool("sbatch", "cat > /dev/null; echo 7")
    token = "single (name=a) #1"
    tool(
        "squeue",
        f"echo '7|RUNNING|0:42|5:00|N/A|N/A|node1|None|run|{token}|/w'; echo '8|PENDING|0:00|5:00|N/A|N/A||None|run|{token}|/w'",
    )
    cancelled = tool("scancel", "")
    executor.run_jobs([Job()])
    until(lambda: cancelled.exists() and cancelled.read_text())
    assert cancelled.read_text().splitlines()[0] == "--quiet 8"


def test_batch_script_passes_on_configuration_signal_and_exit_code() -> None:
    """Slurm sends SIGTERM only to the script's shell."""
    command = """sh -c 'trap "exit 7" TERM; echo $SNAKEMAKE_SLURM_GUARDED_CONF; while :; do sleep 0.05; done'"""
    script = plugin.executor._SCRIPT % command
    env = {"PATH": os.environ["PATH"], "SLURM_CONF": "/etc/slurm.conf"}
    shell = subprocess.Popen(["sh", "-c", script], env=env, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert shell.stdout and shell.stdout.readline() == "/etc/slurm.conf\n"
    shell.terminate()
    assert shell.wait(60) == 7
    shell.stdout.close()


def test_own_jobs_variables_are_removed_except_slurm_conf(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_JOB_ID", "SLURM_NNODES", "SLURM_CONF"):
        monkeypatch.setenv(name, "1")
    executor_module._leave_job_environment()
    assert {name for name in os.environ if name.startswith("SLURM_")} == {"SLURM_CONF"}
