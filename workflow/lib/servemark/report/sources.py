"""Which sources are at work."""

from __future__ import annotations

import subprocess


def commit() -> str:
    """The workflow's git commit, with a mark when the tree differs from it; words when there is no git."""
    try:
        text = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return "not a git checkout"
    return text.strip()
