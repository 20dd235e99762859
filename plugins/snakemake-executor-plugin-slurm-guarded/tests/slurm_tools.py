"""Shell scripts in place of Slurm's tools."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

AWAY = "echo Connection refused >&2; exit 1"
MakeTool = Callable[[str, str], Path]


def on_path(folder: Path, monkeypatch: pytest.MonkeyPatch) -> MakeTool:
    """Gives ``make(name, body)``: a script of this name, found before the real tool. It counts its calls in $N, and its arguments
    go to the file that ``make`` gives, a line a call."""
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder), prepend=":")

    def make(name: str, body: str) -> Path:
        script = folder / name
        script.write_text(f'#!/bin/sh\necho "$@" >> {script}.calls\nN=$(wc -l < {script}.calls)\n{body}\n')
        script.chmod(0o755)
        return Path(f"{script}.calls")

    return make
