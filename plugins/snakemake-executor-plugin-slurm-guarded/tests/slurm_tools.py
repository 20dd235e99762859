"""Shell scripts in place of Slurm's commands."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

AWAY = "echo Connection refused >&2; exit 1"
MakeTool = Callable[[str, str], Path]


def on_path(folder: Path, monkeypatch: pytest.MonkeyPatch) -> MakeTool:
    """Return ``make(name, body)``, which writes a script that hides the real command.

    The script counts its calls in $N. It appends its arguments, one line a call, to the file that ``make`` returns."""
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder), prepend=":")

    def make(name: str, body: str) -> Path:
        script = folder / name
        script.write_text(f'#!/bin/sh\necho "$@" >> {script}.calls\nN=$(wc -l < {script}.calls)\n{body}\n')
        script.chmod(0o755)
        return Path(f"{script}.calls")

    return make
