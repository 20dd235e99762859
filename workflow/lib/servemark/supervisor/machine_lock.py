"""The machine lock: without a scheduler, one deployment uses the machine at a time."""

from __future__ import annotations

import contextlib
import fcntl
from pathlib import Path


class MachineLock:
    """Held from :meth:`take` until this process ends."""

    def __init__(self, path: Path):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._file = open(path, "a+")  # noqa: SIM115 - stays open

    def take(self) -> str | None:
        """Take the lock; return the holder's name if another process has it."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.seek(0)
            return self._file.read().strip() or "another deployment"
        return None

    def sign(self, words: str) -> None:
        """Write the holder's name for waiting processes. On a full disk the lock works without it."""
        with contextlib.suppress(OSError):
            self._file.truncate(0)
            self._file.seek(0)
            self._file.write(words)
            self._file.flush()
