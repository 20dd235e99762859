"""Lock files in the cache, which several runs may fill."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from servemark.files.storage import CacheClosed


@contextmanager
def held(path: Path, waiting: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Lock the file ``path`` and make its folder; call ``waiting`` every second while another run has the lock.

    The kernel releases the lock when the process ends. Check for finished work first: another user's cache may be readable only.

    Raises:
        CacheClosed: the cache takes no files.
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
