"""A supervisor with daemons that have a tree of processes."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from servemark import supervisor
from servemark.processes import identity as processes
from servemark.processes.identity import Identity
from servemark.supervisor.process_request import DaemonRequest

# Has a child in its own session that ignores TERM, as vLLM may have. With the argument `deaf` it ignores TERM itself.
DAEMON = """
import os, signal, subprocess, sys, time
if 'deaf' in sys.argv: signal.signal(signal.SIGTERM, signal.SIG_IGN)
deaf = 'import signal,time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(300)'
child = subprocess.Popen([sys.executable, '-c', deaf], start_new_session=True)
print('child', child.pid, os.environ.get('SECRET'), os.environ.get('SERVEMARK_NODE'), flush=True)
time.sleep(300)
"""


def wait_for(condition, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.02)


def daemon(attempt: Path, *arguments: str, name="server", secret: Path | None = None, **more):
    request = DaemonRequest(name=name, argv=(sys.executable, "-c", DAEMON, *arguments), env={}, log=str(attempt / f"{name}.log"),
                            secret_env={"SECRET": str(secret)} if secret else {}, **more)  # fmt: skip
    state = supervisor.request(attempt, request)
    wait_for(lambda: "child" in Path(state.log).read_text())
    return state


def assert_all_dead(attempt: Path):
    # The supervisor writes its last state shortly before it exits.
    wait_for(lambda: not Identity.parse(supervisor.read_state(attempt).identity).alive)
    assert [processes.describe(p) for p in processes.marked(attempt)] == []
