"""Digests of files and folders. A file is read again only if its size, times or inode differ from those of its last reading."""

import hashlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

AT_ONCE = 4
"""Files read at the same time. One stream of a parallel file system is slower than its network."""
_TOGETHER = 64
"""Files that a thread takes at once: handing over small files one by one costs as much as hashing them."""
_CLOCK_S = 2.0
"""A file that changed this shortly before its reading may change again with the same times: 2 s is the coarsest step of a file system's
times (FAT, and NFS servers with it)."""
VERSION_CONTROL = frozenset({".git", ".hg", ".svn"})
CACHES = frozenset({"__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".ipynb_checkpoints"})
"""Folders that tools write next to sources. Python rebuilds its bytecode from the sources."""

_State = tuple[int, int, int, int]
Tell = Callable[[int], object]


def _silent(read: int) -> None:
    pass


class Hashes:
    """Sha256 of files, remembered from one process to the next in a file of this user.

    Attributes:
        refused: why the file cannot be kept; None if it can.
    """

    def __init__(self, cache: Path | None, purpose: str):
        """Read what earlier processes remembered.

        Args:
            cache: the cache folder of the configuration; None to remember nothing.
            purpose: which files these are; each purpose has a file of its own.
        """
        self.refused: OSError | None = None
        # Each user has a folder: a digest from another user would be believed without reading the file.
        name = hashlib.sha256(purpose.encode()).hexdigest()[:16]
        self._store = cache and (cache / f"hashes-{os.getuid()}" / f"{name}.json").absolute()
        self._known: dict[str, tuple[_State, str]] = {}
        self._found: dict[str, tuple[_State, str]] = {}
        # Missing or damaged: every file is read.
        with suppress(OSError, ValueError, TypeError, AttributeError):
            if self._store and self._store.parent.stat().st_uid == os.getuid():
                stored = json.loads(self._store.read_bytes())
                self._known = {path: ((size, mtime, ctime, inode), sha) for path, (size, mtime, ctime, inode, sha) in stored.items()}

    def of(self, paths: Sequence[str], tell: Tell = _silent, together: int = _TOGETHER) -> list[str | None]:
        """Return the sha256 (hex) of each file; None for one that does not exist, is no file, or that this user may not read.

        Args:
            tell: called during the work with the number of bytes read so far.
            together: files that a thread takes at once; 1 for large files.

        Raises:
            OSError: a file cannot be read for another reason.
        """
        portions = [paths[first : first + together] for first in range(0, len(paths), together)]
        found: list[str | None] = []
        read = 0
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for digests, size in pool.map(self._some, portions):
                found += digests
                read += size
                tell(read)
        return found

    def save(self) -> None:
        """Remember the digests of this process's files, and no others; set ``refused`` if the folder cannot be written."""
        if not self._store or self._found == self._known:
            return
        content = json.dumps({path: [*state, sha] for path, (state, sha) in self._found.items()}).encode()
        try:
            self._store.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self._store.parent.stat().st_uid != os.getuid():
                raise PermissionError(f"{self._store.parent} belongs to another user")
            handle, name = tempfile.mkstemp(dir=self._store.parent)
            try:
                with os.fdopen(handle, "wb") as stream:
                    stream.write(content)
                os.replace(name, self._store)
            except BaseException:
                Path(name).unlink(missing_ok=True)
                raise
        except OSError as error:
            self.refused = error

    def _some(self, paths: Sequence[str]) -> tuple[list[str | None], int]:
        every = [self._one(path) for path in paths]
        return [digest for digest, _ in every], sum(size for _, size in every)

    def _one(self, path: str) -> tuple[str | None, int]:
        """Return a file's digest, and the number of bytes that were read for it."""
        try:
            state, known = _state(os.stat(path)), self._found.get(path) or self._known.get(path)
            if known and known[0] == state:
                self._found[path] = known
                return known[1], 0
            if not os.path.isfile(path):
                return None, 0
            with open(path, "rb") as stream:
                state = _state(os.fstat(stream.fileno()))
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            return None, 0
        if time.time_ns() - max(state[1:3]) > _CLOCK_S * 1e9:
            self._found[path] = (state, digest)
        return digest, state[0]


def _state(found: os.stat_result) -> _State:
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino


def walk(folder: str, skip: Collection[str] = (), *, hidden: bool = True) -> Iterator[str]:
    """Yield the paths of the files below a folder, relative to it, through links; not in a folder above itself.

    Args:
        skip: names of files and folders to leave out.
        hidden: also files and folders whose name begins with a dot.
    """
    seen: set[tuple[int, int]] = set()
    for place, folders, names in os.walk(folder, followlinks=True):
        here = os.stat(place)
        if (here.st_dev, here.st_ino) in seen:
            folders[:] = []
            continue
        seen.add((here.st_dev, here.st_ino))
        folders[:] = sorted(name for name in folders if name not in skip and (hidden or not name.startswith(".")))
        relative = os.path.relpath(place, folder)
        for name in sorted(names):
            if name not in skip and (hidden or not name.startswith(".")):
                yield name if relative == "." else f"{relative}/{name}"


def combined(entries: Iterable[tuple[str, str | None]]) -> str:
    """Return the sha256 (hex) of the sorted lines ``SHA256  NAME``; files without a digest are left out."""
    lines = sorted(f"{digest}  {name}\n" for name, digest in entries if digest)
    return hashlib.sha256("".join(lines).encode(errors="surrogateescape")).hexdigest()


def unread(name: str) -> bool:
    """Return whether a file is Python's bytecode, or what NFS keeps of a deleted file while it is open."""
    return name.endswith((".pyc", ".pyo")) or os.path.basename(name).startswith(".nfs")


def of_path(path: str, hashes: Hashes, wanted: Callable[[str], bool] | None = None, tell: Tell = _silent) -> str | None:
    """Return the digest of a file's content, or of a folder's: names and contents of its files, without hidden ones and bytecode.

    Args:
        wanted: decides by its relative name whether a file of a folder counts; None: all count.
        tell: as of :meth:`Hashes.of`.

    Returns:
        None if the path does not exist or this user may not read it.

    Raises:
        OSError: a file cannot be read for another reason.
    """
    if os.path.isfile(path):
        return hashes.of([path], tell)[0]
    if not os.path.isdir(path) or not os.access(path, os.R_OK | os.X_OK):
        return None
    names = [name for name in walk(path, CACHES, hidden=False) if not unread(name) and (wanted is None or wanted(name))]
    return combined(zip(names, hashes.of([os.path.join(path, name) for name in names], tell), strict=True))
