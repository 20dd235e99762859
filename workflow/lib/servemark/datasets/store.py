"""Files in the cache whose name is their sha256. Each is written as a draft, which gets its name when it is whole.

A draft's name contains the process that writes it: ``.draft-PID:START@HOST-RANDOM``.
"""

import hashlib
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from servemark.files import storage
from servemark.processes import identity
from servemark.processes.identity import Identity

_PREFIX = ".draft-"
_OLD_S = 24 * 3600.0
"""Seconds without a write after which the draft of a process that cannot be seen from here counts as left behind."""


class Draft:
    """One file. ``keep`` gives it its name."""

    def __init__(self, folder: Path):
        handle, name = tempfile.mkstemp(dir=folder, prefix=f"{_PREFIX}{identity.myself()}-")
        self._path, self._stream, self._digest, self.bytes = Path(name), os.fdopen(handle, "wb"), hashlib.sha256(), 0

    def add(self, line: bytes) -> None:
        """Write a line."""
        self._stream.write(line)
        self._digest.update(line)
        self.bytes += len(line)

    def keep(self, suffix: str, mode: int) -> tuple[Path, str]:
        """Return path and sha256 of the finished file; its name is the sha256 and ``suffix``. ``mode``: its permissions."""
        self._stream.close()
        self._path.chmod(mode)
        path = self._path.with_name(self._digest.hexdigest() + suffix)
        with suppress(FileNotFoundError):
            # The same rows: who may read them now must be able to read them afterwards.
            self._path.chmod(mode | path.stat().st_mode & 0o777)
        self._path.replace(path)
        return path, self._digest.hexdigest()

    def drop(self) -> None:
        """Remove the draft; does nothing after ``keep``."""
        self._stream.close()
        self._path.unlink(missing_ok=True)


@contextmanager
def drafts(folder: Path, count: int = 1) -> Iterator[list[Draft]]:
    """Make drafts in a folder. Remove those of killed processes before, and those that are not kept afterwards.

    Raises:
        StorageRefused: the folder takes no files.
    """
    made: list[Draft] = []
    with storage.naming(folder):
        folder.mkdir(parents=True, exist_ok=True)
        _tidy(folder)
        try:
            for _ in range(count):
                made.append(Draft(folder))
            yield made
        finally:
            for one in made:
                one.drop()


def _tidy(folder: Path) -> None:
    for path in folder.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            if _left(path):
                path.unlink()


def _left(draft: Path) -> bool:
    """Return whether nobody writes a draft: its process has ended, or it is of another machine and old."""
    try:
        writer = Identity.parse(draft.name.removeprefix(_PREFIX).rpartition("-")[0])
    except ValueError:
        writer = None
    if writer and writer.here:
        return not writer.alive
    return time.time() - draft.stat().st_mtime > _OLD_S
