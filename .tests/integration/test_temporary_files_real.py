"""Real vLLM (CPU) leaves no temporary files and nothing in /dev/shm, even if it is killed and run again."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest

from integration.harness import Checkout, wait_until
from integration.test_real_vllm import TINY, _possible, _short_runtime, real  # noqa: F401 - two are fixtures
from servemark.processes import shared_memory


def abandoned() -> set[str]:
    """Return the names in /dev/shm that no living process has mapped (other programs of this machine use it too)."""
    mapped = {name for pid in psutil.pids() for name in shared_memory.mapped(pid)}
    return {path.name for path in Path(shared_memory.FOLDER).iterdir()} - mapped


def kill_everything(checkout: Checkout) -> None:
    while found := checkout.processes():
        for process in found:
            process.kill()


@pytest.mark.full
@pytest.mark.real
@pytest.mark.timeout(900)
def test_killed_real_vllm_leaves_nothing_after_a_rerun(fresh: Checkout, tmp_path: Path) -> None:
    before, temporary = abandoned(), tmp_path / "temporary"
    temporary.mkdir()
    fresh.config = real(fresh, {"a": TINY, "b": TINY | {"topology": {"tensor_parallel": 2, "executor": "mp"}}}, requests=20)
    fresh.config["verdict"] = {"min_duration_s": 0.0, "min_requests_per_slot": 1.0}
    running = fresh.start(TMPDIR=str(temporary))
    # Both ranks have mapped their shared memory when the server is ready.
    fresh.wait_for_progress("ready after", subject="b", seconds=400)
    running.interrupt(signal.SIGSTOP)
    kill_everything(fresh)
    running.process.wait()
    done = fresh.run(TMPDIR=str(temporary), seconds=400)
    assert done.rc == 0, done.text
    fresh.assert_all_dead()
    assert [path.name for path in temporary.iterdir()] == []
    wait_until(lambda: not abandoned() - before, 10, f"nothing new in /dev/shm: {abandoned() - before}")
    assert [name for name in os.listdir(fresh.runtime) if name != "machine.lock"] == []
