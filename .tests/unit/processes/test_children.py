"""Children and tools end with all that they started, and never outlive the process that they work for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from builders.families import DEAF
from builders.paths import LIBRARY
from servemark.processes import children, identity
from servemark.processes.children import OwnerWatch
from servemark.processes.identity import Identity


def test_child_has_its_own_session_log_and_no_input(tmp_path):
    log = tmp_path / "logs" / "child.log"
    code = "import os, sys; print(repr(sys.stdin.read()), os.getsid(0) == os.getpid()); print('e', file=sys.stderr)"
    for _ in range(2):
        child = children.start_child([sys.executable, "-c", code], log=log, env={})
        assert child.wait(60) == 0
    assert log.read_text().splitlines().count("'' True") == 2, "the second child appends"
    assert log.read_text().splitlines().count("e") == 2


def test_child_ends_with_the_process_that_started_it(tmp_path, wait_for):
    code = (
        "import sys, time; from pathlib import Path; from servemark.processes import children\n"
        "child = children.start_child([sys.executable, '-c', 'import time; time.sleep(300)'], log=Path(sys.argv[1]), env={})\n"
        "print(child.pid, flush=True); time.sleep(300)"
    )
    starter = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "log")], stdout=subprocess.PIPE, env={"PYTHONPATH": LIBRARY})
    child = Identity.of(int(starter.stdout.readline()))
    assert child.alive
    starter.kill()
    starter.wait()
    wait_for(lambda: not child.alive)


def test_end_group_ends_a_detached_grandchild(family):
    child, grandchild = family
    children.end_group(child, grace_s=2)
    assert child.returncode == -signal.SIGTERM
    assert identity.wait_for_end(grandchild, 60)


def test_end_group_kills_a_child_that_ignores_sigterm(tmp_path, wait_for):
    log = tmp_path / "deaf.log"
    child = children.start_child([sys.executable, "-c", DEAF], log=log, env={})
    wait_for(lambda: "deaf" in log.read_text())
    children.end_group(child, grace_s=0.2)
    assert child.returncode == -signal.SIGKILL
    children.end_group(child)  # ended already: nothing happens


def test_the_end_of_the_owner_process_ends_the_tools_and_this_process(family, sleeper, wait_for, monkeypatch):
    child, grandchild = family
    spared = sleeper()
    master = sleeper()
    exits = []
    monkeypatch.setattr(children.os, "_exit", exits.append)
    watch = OwnerWatch(Identity.of(master.pid))
    watch.add(child)
    watch.add(spared)
    watch.remove(spared)
    master.kill()
    wait_for(lambda: exits)
    assert exits == [130]
    late = threading.Thread(target=watch.remove, args=(child,), daemon=True)
    late.start()
    late.join(0.3)
    assert late.is_alive(), "the caller does not learn of the tool's end"
    assert child.wait(60) == -signal.SIGKILL
    assert identity.wait_for_end(grandchild, 60)
    assert spared.poll() is None


def test_script_ends_its_tool_after_the_end_of_the_owner_process(sleeper, tmp_path, wait_for):
    master = sleeper()
    code = (
        "import sys; from pathlib import Path; from servemark.processes import children\n"
        "children.run_tool([sys.executable, '-c', 'import os, time; print(os.getpid(), flush=True); time.sleep(300)'],\n"
        "  log=Path(sys.argv[1]), env={}, timeout_s=60, watch=children.OwnerWatch())"
    )
    log = tmp_path / "tool.log"
    env = {"PYTHONPATH": LIBRARY, identity.OWNER_PROCESS_VARIABLE: str(Identity.of(master.pid))}
    script = subprocess.Popen([sys.executable, "-c", code, str(log)], env=env)
    wait_for(lambda: log.exists() and log.read_text().endswith("\n"))
    tool = Identity.of(int(log.read_text()))
    master.kill()
    master.wait()
    assert script.wait(60) == 130
    assert identity.wait_for_end(tool, 60)


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [("print('done')", 0), ("import sys; sys.exit(3)", 3), ("import os; os.kill(os.getpid(), 9)", -9)],
)
def test_tool_ends_with_its_own_exit_code(tmp_path, watch, code, exit_code):
    result = children.run_tool([sys.executable, "-c", code], log=tmp_path / "log", env={}, timeout_s=120, watch=watch)
    assert (result.exit_code, result.stopped) == (exit_code, None)
    assert 0 < result.seconds < 120
    assert watch._children == set()


@pytest.mark.parametrize(
    ("timeout_s", "check", "stopped"),
    [
        (0.3, lambda: None, "timeout after 0 s"),
        (60, lambda: "the server died", "the server died"),
    ],
)
def test_tool_is_ended_by_timeout_or_check_with_the_reason(tmp_path, timeout_s, check, stopped):
    result = children.run_tool(
        ["sleep", "300"], log=tmp_path / "log", env=dict(os.environ), timeout_s=timeout_s, check=check, interval_s=0.05
    )
    assert result.stopped == stopped
    assert result.exit_code == -signal.SIGTERM
    assert result.seconds < 50


def test_tool_ends_by_itself_when_its_heartbeat_pipe_closes(tmp_path):
    code = "import sys; sys.stdin.read(); print('let go', flush=True); sys.exit(5)"
    given = {"log": tmp_path / "log", "env": {}, "timeout_s": 120, "heartbeat_pipe": True, "interval_s": 0.05}
    begin = time.monotonic()
    result = children.run_tool([sys.executable, "-c", code], check=lambda: "enough" if time.monotonic() - begin > 0.2 else None, **given)
    assert (result.exit_code, result.stopped) == (5, "enough"), "it was not killed"
    assert (tmp_path / "log").read_text() == "let go\n"
    assert children.run_tool([sys.executable, "-c", "pass"], **given).exit_code == 0


def test_tool_is_ended_by_an_error_of_the_caller(tmp_path, watch):
    log = tmp_path / "log"

    def check():
        if log.read_text():
            raise RuntimeError("a defect")

    code = "import os, time; print(os.getpid(), flush=True); time.sleep(300)"
    with pytest.raises(RuntimeError, match="a defect"):
        children.run_tool([sys.executable, "-c", code], log=log, env={}, timeout_s=120, watch=watch, check=check)
    assert Identity.of(int(log.read_text())) is None
    assert watch._children == set()
