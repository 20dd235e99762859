"""Supervisors and their owner process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from builders.supervised import wait_for
from servemark import supervisor
from servemark.processes import identity as processes
from servemark.processes.identity import Identity
from servemark.supervisor import SupervisorSpec


@pytest.fixture
def master():
    """The owner process, in place of the Snakemake that runs the rule."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def attempts(tmp_path, master):
    started = []

    def start(name="a", lock="machine.lock", **more) -> Path:
        attempt = tmp_path / name
        live_record = tmp_path / f"{name}-ready.json"
        live_record.write_text("{}")
        scratch = tmp_path / f"{name}-scratch"
        scratch.mkdir()
        identity = Identity.of(master.pid)
        given = {"deployment": name, "lifeline": str(identity), "machine_lock": str(tmp_path / lock), "tokens": (str(live_record),),
                 "scratch": str(scratch), "stop_grace_s": 0.4, "orphan_grace_s": 0.4}  # fmt: skip
        spec = SupervisorSpec(**(given | more))
        supervisor.launch(attempt, spec)
        wait_for(lambda: supervisor.read_state(attempt) is not None)
        started.append(attempt)
        return attempt

    yield start
    for attempt in started:
        (attempt / "stop").touch()
    for attempt in started:
        wait_for(lambda attempt=attempt: not Identity.parse(supervisor.read_state(attempt).identity).alive)
        for left in processes.marked(attempt):
            left.kill()
