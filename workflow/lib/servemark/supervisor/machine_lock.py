"""The machine's lock: without a scheduler, one deployment has the machine at a time."""

from __future__ import annotations

import contextlib
import fcntl
from pathlib import Path


class MachineLock:
    """Held from :meth:`take` until this process ends, which is what releases it."""

    def __init__(self, path: Path):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._file = open(path, "a+")  # noqa: SIM115 - see above

    def take(self) -> str | None:
        """Take the lock. Returns the words of its holder if another process has it."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.seek(0)
            return self._file.read().strip() or "another deployment"
        return None

    def sign(self, words: str) -> None:
        """Write who holds it, for those that wait. The lock holds without these words, also on a full disk."""
        with contextlib.suppress(OSError):
            self._file.truncate(0)
            self._file.seek(0)
            self._file.write(words)
            self._file.flush()
