"""The lock of a part of the cache that several runs fill."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from servemark.files.storage import CacheClosed


@contextmanager
def held(path: Path, waiting: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Hold the lock file ``path``, whose folder is made; call ``waiting`` every second while another run holds it.

    The kernel releases it when the process ends. Look for the finished work before: another user's cache lets us read and not lock.

    Raises:
        CacheClosed: nothing can be written there.
    """
    lock = FileLock(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        while not lock.is_locked:
            try:
                lock.acquire(timeout=1.0)
            except Timeout:
                waiting()
    except OSError as error:
        raise CacheClosed(path.parent, error) from None
    try:
        yield
    finally:
        lock.release()
