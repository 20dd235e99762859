"""Processes are named by id and start time, ended with all they started, and never outlive the one they work for."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from servemark import processes
from servemark.processes import Identity, LifelineWatch

LIBRARY = str(Path(processes.__file__).parents[1])
# Starts a child that left for a session of its own and is deaf to TERM, says its pid, and sleeps.
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(300)"
PARENT = f"""
import subprocess, sys, time
child = subprocess.Popen([sys.executable, '-c', {DEAF!r}], start_new_session=True, stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(300)
"""


@pytest.fixture
def sleeper():
    started = []

    def start(env=None):
        process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"], env=env)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


@pytest.fixture
def family(tmp_path, wait_for):
    """A child with a detached, deaf child of its own: (child, grandchild's identity)."""
    log = tmp_path / "family.log"
    child = processes.start_child([sys.executable, "-c", PARENT], log=log, env=processes.clean_environment())
    wait_for(lambda: log.read_text().endswith("\n"))
    grandchild = Identity.of(int(log.read_text()))
    yield child, grandchild
    for identity in (grandchild, Identity.of(child.pid)):
        if identity:
            identity.signal(signal.SIGKILL)
    child.wait()


def zombie() -> subprocess.Popen[bytes]:
    process = subprocess.Popen(["true"])
    deadline = time.monotonic() + 5
    while Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return process


def test_an_identity_survives_its_spelling():
    me = processes.myself()
    assert me.pid == os.getpid() and me.alive
    assert Identity.parse(str(me)) == me


def test_a_process_with_another_start_time_is_another_process(sleeper):
    real = Identity.of(sleeper().pid)
    reused = Identity(real.pid, real.start - 1)
    assert real.alive and not reused.alive
    reused.signal(signal.SIGKILL)
    time.sleep(0.1)
    assert real.alive, "a signal reaches only the very process that is meant"
    real.signal(signal.SIGKILL)
    assert processes.wait_for_end(real, 5)


def test_the_dead_and_zombies_have_no_identity():
    process = zombie()
    assert Identity.of(process.pid) is None
    assert not processes._running(psutil.Process(process.pid))
    process.wait()
    assert Identity.of(process.pid) is None


def test_a_process_whose_first_thread_has_ended_lives_while_another_one_runs(wait_for):
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
    assert processes.wait_for_end(identity, 5)
    assert process.wait() == -signal.SIGKILL


def test_a_process_of_another_machine_is_none_of_ours():
    other = Identity(os.getpid(), processes.myself().start, "another-machine")
    assert not other.here and not other.alive and processes.myself().here
    other.signal(signal.SIGKILL)  # would end this very test
    assert Identity.parse(str(other)) == other


@pytest.mark.parametrize("text", ["", "12", "a:b", "1:2:3"])
def test_a_text_that_is_no_identity_is_a_value_error(text):
    with pytest.raises(ValueError):
        Identity.parse(text)


def test_the_lifeline_is_what_was_exported_or_else_the_parent(monkeypatch):
    monkeypatch.setenv(processes.LIFELINE_VARIABLE, f"7:8@{processes.host()}")
    assert processes.lifeline() == Identity(7, 8)
    processes.ensure_lifeline()
    assert processes.lifeline() == Identity(7, 8), "it was given"
    monkeypatch.setenv(processes.LIFELINE_VARIABLE, "7:8@another-machine")
    assert processes.lifeline().pid == os.getppid(), "a job inherits the variable of the machine that submitted it"
    processes.ensure_lifeline()
    assert processes.lifeline() == processes.myself()
    monkeypatch.delenv(processes.LIFELINE_VARIABLE)
    processes.export_lifeline()
    assert processes.lifeline() == processes.myself()
    monkeypatch.delenv(processes.LIFELINE_VARIABLE)
    assert processes.lifeline().pid == os.getppid()
    monkeypatch.setattr(os, "getppid", lambda: 2**22 + 1)
    assert processes.lifeline() == processes.myself(), "the parent is gone"


def test_the_environment_for_another_interpreter_has_no_credentials_and_no_module_paths(monkeypatch):
    for name in processes._NOT_INHERITED:
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("KEPT", "yes")
    env = processes.clean_environment({"OPENAI_API_KEY": "given on purpose"})
    assert env["KEPT"] == "yes" and env["OPENAI_API_KEY"] == "given on purpose"
    assert not set(processes._NOT_INHERITED).intersection(env) - {"OPENAI_API_KEY"}


def test_a_child_writes_to_its_log_reads_nothing_and_leads_its_session(tmp_path):
    log = tmp_path / "logs" / "child.log"
    code = "import os, sys; print(repr(sys.stdin.read()), os.getsid(0) == os.getpid(), os.getcwd()); print('e', file=sys.stderr)"
    for _ in range(2):
        child = processes.start_child([sys.executable, "-c", code], log=log, env={}, cwd=tmp_path)
        assert child.wait(10) == 0
    assert log.read_text().splitlines().count(f"'' True {tmp_path}") == 2, "the second one's words are appended"
    assert log.read_text().splitlines().count("e") == 2


def test_a_child_dies_with_the_process_that_started_it(tmp_path, wait_for):
    code = (
        "import sys, time; from pathlib import Path; from servemark import processes\n"
        "child = processes.start_child([sys.executable, '-c', 'import time; time.sleep(300)'], log=Path(sys.argv[1]), env={})\n"
        "print(child.pid, flush=True); time.sleep(300)"
    )
    starter = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "log")], stdout=subprocess.PIPE, env={"PYTHONPATH": LIBRARY}
    )
    child = Identity.of(int(starter.stdout.readline()))
    assert child.alive
    starter.kill()
    starter.wait()
    wait_for(lambda: not child.alive, 5)


def test_a_subreaper_finds_the_orphans_of_its_children():
    code = (
        "import os, subprocess, sys, time; from servemark import processes\n"
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


def test_descendants_are_the_living_ones(family):
    child, grandchild = family
    assert [p.pid for p in processes.descendants(child.pid)] == [grandchild.pid]
    ended = zombie()
    assert processes.descendants(ended.pid) == []
    ended.wait()
    assert processes.descendants(ended.pid) == [], "a process that is gone has none"


def test_ending_a_group_ends_the_child_that_detached_itself(family):
    child, grandchild = family
    processes.end_group(child, grace_s=2)
    assert child.returncode == -signal.SIGTERM
    assert processes.wait_for_end(grandchild, 5)


def test_ending_a_group_kills_what_ignores_a_request(tmp_path, wait_for):
    log = tmp_path / "deaf.log"
    child = processes.start_child([sys.executable, "-c", DEAF], log=log, env={})
    wait_for(lambda: "deaf" in log.read_text())
    processes.end_group(child, grace_s=0.2)
    assert child.returncode == -signal.SIGKILL
    processes.end_group(child)  # ended already: nothing happens


def test_marked_finds_what_an_attempt_of_this_checkout_started_and_nothing_else(
    sleeper, wait_for, tmp_path, monkeypatch
):
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    here.mkdir()
    monkeypatch.chdir(here)
    mark = Path("results/demo/deployments/plain/attempts/001")
    ours = sleeper(processes.mark(mark))
    second = sleeper(processes.mark(mark.with_name("0010")))
    sleeper(processes.mark(elsewhere / mark))
    sleeper({"OTHER": str(mark.absolute())})
    # Until a new process has called exec its environment is that of its parent.
    wait_for(lambda: [p.pid for p in processes.marked(mark)] == [ours.pid], 5)
    assert {p.pid for p in processes.marked(mark.parent)} == {ours.pid, second.pid}
    assert [p.pid for p in processes.marked(mark.parent, but=mark)] == [second.pid], "this one is left alone"
    ours.kill()
    ours.wait()
    assert processes.marked(mark) == []


def test_describe_names_a_process_even_when_it_is_gone(sleeper, wait_for):
    process = sleeper()
    wait_for(lambda: "time.sleep" in processes.describe(psutil.Process(process.pid)), 5)
    seen = psutil.Process(process.pid)
    assert processes.describe(seen).startswith(f"{process.pid} {sys.executable} -c")
    process.kill()
    process.wait()
    assert processes.describe(seen) == str(process.pid)
    processes.signal_all([seen], signal.SIGTERM)  # gone: no error


@pytest.mark.parametrize("pidfd", [True, False], ids=["pidfd", "without pidfd"])
def test_waiting_for_an_end_is_bounded_and_sees_it_at_once(sleeper, monkeypatch, pidfd):
    if not pidfd:
        monkeypatch.setattr(os, "pidfd_open", lambda _: (_ for _ in ()).throw(OSError("no such call")))
    process = sleeper()
    identity = Identity.of(process.pid)
    begin = time.monotonic()
    assert processes.wait_for_end(identity, 0.3) is False
    assert 0.25 < time.monotonic() - begin < 2
    process.kill()
    begin = time.monotonic()
    assert processes.wait_for_end(identity) is True
    assert time.monotonic() - begin < 1


def test_the_end_of_the_lifeline_ends_the_tools_and_this_process(family, sleeper, wait_for, monkeypatch):
    child, grandchild = family
    spared = sleeper()
    master = sleeper()
    exits = []
    monkeypatch.setattr(processes.os, "_exit", exits.append)
    watch = LifelineWatch(Identity.of(master.pid))
    watch.add(child)
    watch.add(spared)
    watch.remove(spared)
    master.kill()
    wait_for(lambda: exits)
    assert exits == [130]
    late = threading.Thread(target=watch.remove, args=(child,), daemon=True)
    late.start()
    late.join(0.3)
    assert late.is_alive(), "whoever waited for the tool learns nothing of its end"
    assert child.wait(5) == -signal.SIGKILL
    assert processes.wait_for_end(grandchild, 5)
    assert spared.poll() is None


def test_a_script_whose_lifeline_ends_takes_its_tool_along(sleeper, tmp_path, wait_for):
    master = sleeper()
    code = (
        "import sys; from pathlib import Path; from servemark import processes\n"
        "processes.run_tool([sys.executable, '-c', 'import os, time; print(os.getpid(), flush=True); time.sleep(300)'],\n"
        "  log=Path(sys.argv[1]), env={}, timeout_s=60, watch=processes.LifelineWatch())"
    )
    log = tmp_path / "tool.log"
    env = {"PYTHONPATH": LIBRARY, processes.LIFELINE_VARIABLE: str(Identity.of(master.pid))}
    script = subprocess.Popen([sys.executable, "-c", code, str(log)], env=env)
    wait_for(lambda: log.exists() and log.read_text().endswith("\n"))
    tool = Identity.of(int(log.read_text()))
    master.kill()
    master.wait()
    assert script.wait(5) == 130
    assert processes.wait_for_end(tool, 5)


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [("print('done')", 0), ("import sys; sys.exit(3)", 3), ("import os; os.kill(os.getpid(), 9)", -9)],
)
def test_a_tool_ends_with_its_own_exit_code(tmp_path, watch, code, exit_code):
    result = processes.run_tool([sys.executable, "-c", code], log=tmp_path / "log", env={}, timeout_s=20, watch=watch)
    assert (result.exit_code, result.stopped) == (exit_code, None)
    assert 0 < result.seconds < 20
    assert watch._children == set()


@pytest.mark.parametrize(
    ("timeout_s", "check", "stopped"),
    [
        (0.3, lambda: None, "timeout after 0 s"),
        (60, lambda: "the server died", "the server died"),
    ],
)
def test_a_tool_that_must_end_is_ended_and_the_reason_is_kept(tmp_path, timeout_s, check, stopped):
    result = processes.run_tool(
        ["sleep", "300"], log=tmp_path / "log", env=dict(os.environ), timeout_s=timeout_s, check=check, interval_s=0.05
    )
    assert result.stopped == stopped
    assert result.exit_code == -signal.SIGTERM
    assert result.seconds < 5


def test_a_tool_on_a_leash_ends_by_itself_when_it_is_let_go(tmp_path):
    code = "import sys; sys.stdin.read(); print('let go', flush=True); sys.exit(5)"
    given = {"log": tmp_path / "log", "env": {}, "timeout_s": 20, "leash": True, "interval_s": 0.05}
    begin = time.monotonic()
    result = processes.run_tool(
        [sys.executable, "-c", code], check=lambda: "enough" if time.monotonic() - begin > 0.2 else None, **given
    )
    assert (result.exit_code, result.stopped) == (5, "enough"), "it was not killed"
    assert (tmp_path / "log").read_text() == "let go\n"
    assert processes.run_tool([sys.executable, "-c", "pass"], **given).exit_code == 0


def test_a_tool_does_not_outlive_an_error_of_the_caller(tmp_path, watch):
    log = tmp_path / "log"

    def check():
        if log.read_text():
            raise RuntimeError("a defect")

    code = "import os, time; print(os.getpid(), flush=True); time.sleep(300)"
    with pytest.raises(RuntimeError, match="a defect"):
        processes.run_tool([sys.executable, "-c", code], log=log, env={}, timeout_s=20, watch=watch, check=check)
    assert Identity.of(int(log.read_text())) is None
    assert watch._children == set()


def test_marked_finds_a_process_that_wiped_its_environment_by_where_it_writes(tmp_path, wait_for):
    attempt, scratch = tmp_path / "001", tmp_path / "scratch"
    attempt.mkdir()
    scratch.mkdir()
    code = "import time; print('up', flush=True); time.sleep(300)"
    renamed = [
        processes.start_child([sys.executable, "-c", code], log=folder / "out.log", env={})
        for folder in (attempt, scratch)
    ]
    other = processes.start_child([sys.executable, "-c", code], log=tmp_path / "0012" / "out.log", env={})
    wait_for(lambda: all("up" in (f / "out.log").read_text() for f in (attempt, scratch, tmp_path / "0012")))
    assert {p.pid for p in processes.marked(attempt)} == {renamed[0].pid}
    assert {p.pid for p in processes.marked(attempt, scratch)} == {p.pid for p in renamed}
    for child in (*renamed, other):
        processes.end_group(child, grace_s=0.2)
    assert processes.marked(attempt, scratch) == []


def test_what_another_interpreter_gets_of_our_environment(monkeypatch):
    for name in (
        "OMP_NUM_THREADS",
        "HF_TOKEN",
        "VLLM_API_KEY",
        "VLLM_ATTENTION_BACKEND",
        "VLLM_CACHE_ROOT",
        "NCCL_NET",
    ):
        monkeypatch.setenv(name, "1")
    env = processes.clean_environment({"VLLM_USE_V2": "given"})
    left = {name for name in env if name.startswith(("OMP_", "HF_", "VLLM_", "NCCL_"))}
    assert left == {"VLLM_CACHE_ROOT", "NCCL_NET", "VLLM_USE_V2"}
