"""Fixtures of several tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from slurm_tools import MakeTool, on_path


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeTool:
    """Make shell scripts in place of Slurm's commands."""
    return on_path(tmp_path / "bin", monkeypatch)
