"""An interrupted or killed run leaves no temporary files."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from integration.harness import Checkout


@pytest.fixture
def temporary(tmp_path: Path) -> Path:
    """Return a folder for the temporary files of a run."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    return folder


@pytest.mark.parametrize("number", [pytest.param(signal.SIGTERM, marks=pytest.mark.full), signal.SIGKILL])
def test_ended_run_leaves_no_temporary_files(checkout: Checkout, temporary: Path, number: int) -> None:
    checkout.keep("a")
    running = checkout.start(TMPDIR=str(temporary), STANDIN_TOKEN_S="0.5")
    checkout.wait_for_progress("chat-c1-r1: 6 requests", subject="a")
    spec = json.loads((checkout.attempts("a")[-1] / "supervisor-spec.json").read_text())
    server = Path(f"/proc/{checkout.daemon('a')['pid']}/environ").read_text().split("\0")
    assert f"TMPDIR={spec['scratch']}" in server
    running.interrupt(number)
    running.wait(480)
    checkout.assert_all_dead()
    assert [path.name for path in temporary.iterdir()] == []
