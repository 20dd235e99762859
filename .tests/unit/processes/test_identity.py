"""Processes are named by id and start time, ended with all they started, and never outlive the process that they work for."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from builders.paths import LIBRARY
from servemark.processes import children
from servemark.processes import identity as processes
from servemark.processes.identity import Identity
from servemark.variables import passed_on, table


def zombie() -> subprocess.Popen[bytes]:
    process = subprocess.Popen(["true"])
    deadline = time.monotonic() + 60
    while Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return process


def test_identity_is_parsed_from_its_text():
    me = processes.myself()
    assert me.pid == os.getpid() and me.alive
    assert Identity.parse(str(me)) == me


def test_process_with_another_start_time_is_another_process(sleeper):
    real = Identity.of(sleeper().pid)
    reused = Identity(real.pid, real.start - 1)
    assert real.alive and not reused.alive
    reused.signal(signal.SIGKILL)
    time.sleep(0.1)
    assert real.alive, "another process with the same id gets no signal"
    real.signal(signal.SIGKILL)
    assert processes.wait_for_end(real, 60)


def test_ended_process_and_zombie_have_no_identity():
    process = zombie()
    assert Identity.of(process.pid) is None
    assert not processes._running(psutil.Process(process.pid))
    process.wait()
    assert Identity.of(process.pid) is None


def test_process_without_its_first_thread_is_alive(wait_for):
    code = (
        "import ctypes, sys, threading, time\n"
        "threading.Thread(target=time.sleep, args=(300,), daemon=True).start()\n"
        "ctypes.CDLL(None).syscall(int(sys.argv[1]), 0)"
    )
    exit_call = {"x86_64": "60", "aarch64": "93"}[platform.machine()]  # SYS_exit ends the calling thread alone
    process = subprocess.Popen([sys.executable, "-c", code, exit_call])
    try:
        wait_for(lambda: Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z")
        identity = Identity.of(process.pid)
        assert identity is not None and identity.alive
        assert [p.pid for p in processes.descendants(os.getpid()) if p.pid == process.pid] == [process.pid]
    finally:
        process.kill()
    assert processes.wait_for_end(identity, 60)
    assert process.wait() == -signal.SIGKILL


def test_process_of_another_machine_is_not_here():
    other = Identity(os.getpid(), processes.myself().start, "another-machine")
    assert not other.here and not other.alive and processes.myself().here
    other.signal(signal.SIGKILL)  # would end this very test
    assert Identity.parse(str(other)) == other


@pytest.mark.parametrize("text", ["", "12", "a:b", "1:2:3"])
def test_malformed_identity_is_a_value_error(text):
    with pytest.raises(ValueError):
        Identity.parse(text)


def test_the_owner_process_is_what_was_exported_or_else_the_parent(monkeypatch):
    monkeypatch.setenv(processes.OWNER_PROCESS_VARIABLE, f"7:8@{processes.host()}")
    assert processes.owner_process() == Identity(7, 8)
    processes.ensure_owner_process()
    assert processes.owner_process() == Identity(7, 8), "it was given"
    monkeypatch.setenv(processes.OWNER_PROCESS_VARIABLE, "7:8@another-machine")
    assert processes.owner_process().pid == os.getppid(), "a job inherits the variable of the machine that submitted it"
    processes.ensure_owner_process()
    assert processes.owner_process() == processes.myself()
    monkeypatch.delenv(processes.OWNER_PROCESS_VARIABLE)
    processes.export_owner_process()
    assert processes.owner_process() == processes.myself()
    monkeypatch.delenv(processes.OWNER_PROCESS_VARIABLE)
    assert processes.owner_process().pid == os.getppid()
    monkeypatch.setattr(os, "getppid", lambda: 2**22 + 1)
    assert processes.owner_process() == processes.myself(), "the parent is gone"


def test_clean_environment_has_no_credentials_and_module_paths(monkeypatch):
    own = [name for row in table.TABLE for name in row.names if not row.server and "*" not in name]
    for name in own:
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("KEPT", "yes")
    env = passed_on.clean_environment({"OPENAI_API_KEY": "given"})
    assert env["KEPT"] == "yes" and env["OPENAI_API_KEY"] == "given"
    assert not set(own).intersection(env) - {"OPENAI_API_KEY"}


def test_subreaper_finds_orphans_of_its_children():
    code = (
        "import os, subprocess, sys, time; from servemark.processes import identity as processes\n"
        "processes.become_subreaper()\n"
        "subprocess.run([sys.executable, '-c', 'import subprocess; subprocess.Popen([\"sleep\", \"300\"], start_new_session=True)'])\n"
        "(orphan,) = processes.descendants(os.getpid())\n"
        "print(orphan.name(), orphan.ppid() == os.getpid()); orphan.kill()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": LIBRARY, "PATH": os.environ["PATH"]},
    )
    assert done.stdout.split() == ["sleep", "True"], done.stderr


def test_descendants_are_living_processes(family):
    child, grandchild = family
    assert [p.pid for p in processes.descendants(child.pid)] == [grandchild.pid]
    ended = zombie()
    assert processes.descendants(ended.pid) == []
    ended.wait()
    assert processes.descendants(ended.pid) == [], "a process that is gone has none"


def test_marked_finds_only_processes_of_the_attempt(sleeper, wait_for, tmp_path, monkeypatch):
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    here.mkdir()
    monkeypatch.chdir(here)
    mark = Path("results/demo/deployments/plain/attempts/001")
    ours = sleeper(processes.mark(mark))
    second = sleeper(processes.mark(mark.with_name("0010")))
    sleeper(processes.mark(elsewhere / mark))
    sleeper({"OTHER": str(mark.absolute())})
    # Until a new process has called exec its environment is that of its parent.
    wait_for(lambda: {p.pid for p in processes.marked(mark.parent)} == {ours.pid, second.pid})
    assert [p.pid for p in processes.marked(mark)] == [ours.pid]
    assert [p.pid for p in processes.marked(mark.parent, but=mark)] == [second.pid], "this one is left alone"
    ours.kill()
    ours.wait()
    assert processes.marked(mark) == []


def test_describe_names_a_running_and_an_ended_process(sleeper, wait_for):
    process = sleeper()
    wait_for(lambda: "time.sleep" in processes.describe(psutil.Process(process.pid)))
    seen = psutil.Process(process.pid)
    assert processes.describe(seen).startswith(f"{process.pid} {sys.executable} -c")
    process.kill()
    process.wait()
    assert processes.describe(seen) == str(process.pid)
    processes.signal_all([seen], signal.SIGTERM)  # gone: no error


def test_wait_for_end_returns_at_the_end_or_the_timeout(sleeper):
    process = sleeper()
    identity = Identity.of(process.pid)
    begin = time.monotonic()
    assert processes.wait_for_end(identity, 0.3) is False
    assert time.monotonic() - begin > 0.25
    process.kill()
    assert processes.wait_for_end(identity, 60) is True


def test_marked_finds_a_process_by_its_output_file(tmp_path, wait_for):
    attempt, scratch = tmp_path / "001", tmp_path / "scratch"
    attempt.mkdir()
    scratch.mkdir()
    code = "import time; print('up', flush=True); time.sleep(300)"
    renamed = [children.start_child([sys.executable, "-c", code], log=folder / "out.log", env={}) for folder in (attempt, scratch)]
    other = children.start_child([sys.executable, "-c", code], log=tmp_path / "0012" / "out.log", env={})
    wait_for(lambda: all("up" in (f / "out.log").read_text() for f in (attempt, scratch, tmp_path / "0012")))
    assert {p.pid for p in processes.marked(attempt)} == {renamed[0].pid}
    assert {p.pid for p in processes.marked(attempt, scratch)} == {p.pid for p in renamed}
    for child in (*renamed, other):
        children.end_group(child, grace_s=0.2)
    assert processes.marked(attempt, scratch) == []


def test_clean_environment_keeps_places_and_given_variables(monkeypatch):
    for name in [name for name in os.environ if name.startswith(("OMP_", "HF_", "VLLM_", "NCCL_"))]:
        monkeypatch.delenv(name)
    for name in (
        "OMP_NUM_THREADS",
        "HF_TOKEN",
        "VLLM_API_KEY",
        "VLLM_ATTENTION_BACKEND",
        "VLLM_CACHE_ROOT",
        "NCCL_NET",
    ):
        monkeypatch.setenv(name, "1")
    env = passed_on.clean_environment({"VLLM_USE_V2": "given"})
    left = {name for name in env if name.startswith(("OMP_", "HF_", "VLLM_", "NCCL_"))}
    assert left == {"VLLM_CACHE_ROOT", "NCCL_NET", "VLLM_USE_V2"}
