"""Processes for tests: a sleeper, and a child with a detached child that ignores TERM."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from servemark.processes import children
from servemark.processes.identity import Identity
from servemark.variables import passed_on

# Starts a child in its own session that ignores TERM, prints its process id, and sleeps.
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
    """Start a child with a detached child that ignores TERM; return (child, grandchild's identity)."""
    log = tmp_path / "family.log"
    child = children.start_child([sys.executable, "-c", PARENT], log=log, env=passed_on.clean_environment())
    wait_for(lambda: log.read_text().endswith("\n"))
    grandchild = Identity.of(int(log.read_text()))
    yield child, grandchild
    for identity in (grandchild, Identity.of(child.pid)):
        if identity:
            identity.signal(signal.SIGKILL)
    child.wait()
