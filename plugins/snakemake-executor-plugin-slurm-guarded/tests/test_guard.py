"""The guard outlives the main process and cancels its jobs (with a real Slurm: the tests in the sandbox)."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from slurm_tools import AWAY, MakeTool

from snakemake_executor_plugin_slurm_guarded import guard, journal

ROW = "echo '5|{state}|0:00|5:00|N/A|N/A||None|run-1|x|/w'"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "_POLL_S", 0.02)
    monkeypatch.setattr(guard, "_SECOND_QUERY_S", 0.02)
    monkeypatch.setattr(guard, "_LONGEST_PAUSE_S", 0.02)


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    return tmp_path / "jobs.jsonl"


def calls(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def test_sweep_cancels_by_name_until_queue_is_empty(tool: MakeTool, jobs: Path) -> None:
    tool("squeue", f"[ $N -gt 3 ] || {ROW.format(state='RUNNING')}")
    cancelled = tool("scancel", "")
    said: list[str] = []
    assert guard.sweep("run-1", said.append, jobs)
    assert calls(cancelled) == [f"--quiet --user={os.getuid()} --name=run-1"]
    assert len(said) == 2 and "5 (RUNNING)" in said[0]


def test_sweep_queries_twice(tool: MakeTool, jobs: Path) -> None:
    """An interrupted submission may arrive after the first query."""
    tool("squeue", f"[ $N -ne 2 ] && [ $N -ne 3 ] || {ROW.format(state='PENDING')}")
    cancelled = tool("scancel", "")
    assert guard.sweep("run-1", lambda _: None, jobs)
    assert len(calls(cancelled)) == 1


def test_sweep_waits_for_controller_and_reports_it_once(tool: MakeTool, jobs: Path) -> None:
    tool("squeue", f"[ $N -gt 3 ] || {{ {AWAY}; }}")
    said: list[str] = []
    assert guard.sweep("run-1", said.append, jobs)
    assert len(said) == 3, "no response, response, end"


def test_sweep_that_gives_up_prints_the_command(tool: MakeTool, jobs: Path) -> None:
    tool("squeue", AWAY)
    said: list[str] = []
    assert not guard.sweep("run-1", said.append, jobs, patience_s=0.1)
    assert "scancel --name run-1" in said[-1]


def gone(pid: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while guard.identity(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return guard.identity(pid) is None


@pytest.mark.parametrize("clear", [True, False])
def test_guard_outlives_its_parent_and_acts_only_if_needed(tool: MakeTool, jobs: Path, clear: bool) -> None:
    asked = tool("squeue", "")
    log = jobs.with_name("guard.log")
    journal.append(jobs, "run", run="run-1")
    code = (
        "import os, sys; from pathlib import Path; from snakemake_executor_plugin_slurm_guarded import guard;"
        "guard.launch('run-1', guard.identity(os.getpid()), log=Path(sys.argv[2]), jobs_file=Path(sys.argv[1]));"
        "import psutil; assert not psutil.Process().children(recursive=True); input()"
    )
    env = dict(os.environ) | {"PYTHONPATH": str(Path(guard.__file__).parents[1])}
    main = subprocess.Popen([sys.executable, "-c", code, str(jobs), str(log)], stdin=subprocess.PIPE, env=env)
    found = 0
    for _ in range(2000):
        mine = [
            int(entry.name)
            for entry in Path("/proc").iterdir()
            if entry.name.isdigit() and str(jobs) in _command(entry) and "guard" in _command(entry)
        ]
        found = next(
            (pid for pid in mine if pid != main.pid and _session(pid) not in (0, os.getsid(main.pid)) and _parent(pid) != main.pid),
            0,
        )
        if found:
            break
        time.sleep(0.05)
    assert found and guard.identity(found)
    if clear:
        journal.append(jobs, "run_ended", run="run-1")
    main.kill()
    main.wait()
    assert gone(found, 120)
    assert bool(calls(asked)) == (not clear) and log.exists() == (not clear)
    assert journal.closed(jobs, "run-1")


def _command(entry: Path) -> str:
    try:
        return (entry / "cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def _parent(pid: int) -> int:
    return _stat(pid, 1)


def _session(pid: int) -> int:
    return _stat(pid, 3)


def _stat(pid: int, field: int) -> int:
    """Return a field of /proc/PID/stat after the command; 0 if the process has ended meanwhile."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[field])
    except OSError:
        return 0


def test_identity_differs_for_a_reused_process_id() -> None:
    me = guard.identity(os.getpid())
    assert me and guard.lives(me) and not guard.lives(f"{os.getpid()}:1")
    child = subprocess.Popen(["true"])
    deadline = time.monotonic() + 60
    while guard.identity(child.pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert guard.identity(child.pid) is None, "a zombie has ended"
    child.wait()


@pytest.mark.parametrize(("host", "main", "may"), [(None, None, True), (None, "1:1", False), (None, "", False), ("elsewhere", "1:1", True)])
def test_earlier_run_may_be_alive(host: str | None, main: str | None, may: bool) -> None:
    entry = {"host": host or socket.gethostname(), "main": guard.identity(os.getpid()) if main is None else main}
    assert guard.may_live(entry) is may
