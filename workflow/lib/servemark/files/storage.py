"""Describe a failed write: file system, free space, remedy. Every message about such an OSError comes from here."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from servemark.errors import ServemarkError

_NOT_PERMITTED = "not_permitted"
REASONS = {
    errno.ENOSPC: "disk_full",
    errno.EDQUOT: "quota_exceeded",
    errno.EROFS: "read_only",
    errno.EACCES: _NOT_PERMITTED,
    errno.EPERM: _NOT_PERMITTED,
}
_FULL = (errno.ENOSPC, errno.EDQUOT)
FULL = tuple(REASONS[code] for code in _FULL)
# With less than this left a run ends within its first stages.
PROBE_BYTES = 2**20
_AGAIN = "then run the same command again. Finished measurements are kept."
_ELSEWHERE = (
    "To use another file system: `cache` moves the cache, SERVEMARK_RUNTIME_DIR the scratch folders, TMPDIR temporary files. "
    "Results, logs and .snakemake are in the checkout."
)


class StorageRefused(ServemarkError):
    """A file system is full, read-only, or closed to this user."""

    default_reason = "disk_full"


class CacheClosed(ServemarkError):
    """The folder of shared environments and models takes no files."""

    default_reason = "cache_not_writable"

    def __init__(self, place: Path, error: OSError):
        why = refusal(error, place)
        super().__init__(
            f"Nothing can be written in {place}: {why.what if why else error.strerror or error}",
            do="Name a folder that you can write: `cache` in the configuration or in the cluster file. In a cache of several users, the "
            "first user must make it writable for the group (umask 002).",
        )


def refusal(error: BaseException | None, places: Path | Sequence[Path] = (), *, needed: int | None = None) -> StorageRefused | None:
    """Return the message for a file system's OSError; None for other errors.

    A permission error without a file name counts only if one of ``places`` refuses a write now: a signal or a socket can be refused too.

    Args:
        error: its own file name comes first. A failed ``write`` has none. Libraries such as safetensors have errors of their own that
            quote the system's words.
        places: where the write may have gone; of several, the first that refuses a write now is named.
        needed: bytes that had to be written, if known.
    """
    if error and (not isinstance(error, OSError) or error.errno is None):
        error = stated(str(error))
    if not isinstance(error, OSError) or (reason := REASONS.get(error.errno or 0)) is None:
        return None
    # shutil names source and destination; the second is written.
    name = error.filename2 or error.filename
    path = (
        Path(os.fsdecode(name))
        if isinstance(name, (str, bytes, os.PathLike))
        else _refusing([places] if isinstance(places, Path) else places, reason)
    )
    if path is None and reason == _NOT_PERMITTED:
        return None
    what, do = _words(reason, path, needed)
    return StorageRefused(what, do=do, reason=reason)


def stated(text: str) -> OSError | None:
    """Return the file system's error that a program's output quotes."""
    found = next((code for code in (*_FULL, errno.EROFS) if os.strerror(code) in text), None)
    return OSError(found, os.strerror(found)) if found else None


def probe(folders: Iterable[Path], size: int = PROBE_BYTES, *, shared: Iterable[Path] = ()) -> list[StorageRefused]:
    """Write ``size`` bytes into each folder, or its nearest existing parent; return one refusal a file system.

    Args:
        shared: folders that others may fill. These count only if they are full: files in a read-only one can still be used.
    """
    found: dict[tuple[str, Path], StorageRefused] = {}
    for folder, counts in [*((one, tuple(REASONS.values())) for one in folders), *((one, FULL) for one in shared)]:
        if (error := _try(folder, size)) and (refused := refusal(error, folder)) and refused.reason in counts:
            found.setdefault((refused.reason, mount_point(folder)), refused)
    return list(found.values())


def require(*folders: Path, shared: Iterable[Path] = ()) -> None:
    """Raise StorageRefused with every file system that :func:`probe` finds."""
    if found := probe(folders, shared=shared):
        what, do = ("\n".join(dict.fromkeys(getattr(one, part) for one in found)) for part in ("what", "do"))
        raise StorageRefused(what, do=do, reason=found[0].reason)


@contextlib.contextmanager
def naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Give an OSError of a write, which has no file name, the name of ``path``."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = os.fspath(path)
        raise


def tidy(work: Callable[..., Any], *arguments: object) -> None:
    """Run a cleanup function; print a storage error instead of a traceback."""
    try:
        work(*arguments)
    except OSError as error:
        refused = refusal(error)
        with contextlib.suppress(OSError):
            why = refused.message() if refused else error
            print(f"servemark could not remove its temporary records: {why}", file=sys.stderr, flush=True)


def mount_point(path: Path) -> Path:
    """Return the root of the file system that holds ``path``, or will hold it."""
    place = existing(path)
    while not os.path.ismount(place) and place != place.parent:
        place = place.parent
    return place


def existing(path: Path) -> Path:
    """Return ``path`` as an absolute one, or its nearest parent that exists."""
    place = Path(os.path.realpath(path))
    while not os.path.lexists(place) and place != place.parent:
        place = place.parent
    return place


def size(count: int) -> str:
    """Return bytes for people: ``15.3 GiB``."""
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= factor:
            return f"{count / factor:,.1f} {unit}"
    return f"{count} bytes"


def free_words(path: Path) -> str:
    """Return ``the file system MOUNT has 1.0 GiB of 20.0 GiB free``, and whether no inode is left."""
    mount = mount_point(path)
    try:
        state = os.statvfs(mount)
    except OSError as error:
        return f"the file system {mount} does not report its size ({error.strerror})"
    words = f"the file system {mount} has {size(state.f_bavail * state.f_frsize)} of {size(state.f_blocks * state.f_frsize)} free"
    return words + (f" and none of its {state.f_files:,} inodes" if state.f_files and not state.f_favail else "")


def _words(reason: str, path: Path | None, needed: int | None) -> tuple[str, str]:
    """Return what happened, and what to do."""
    if path is None:
        return f"A file system refuses a write ({reason}).", f"Look at `df -h`, free space, {_AGAIN} {_ELSEWHERE}"
    mount, asked = mount_point(path), f" {size(needed)} are needed." if needed else ""
    if reason == "disk_full":
        what, do = f"No space is left to write {path}: {free_words(path)}.{asked}", f"Free space on {mount}"
    elif reason == "quota_exceeded":
        what = f"Your disk quota does not allow to write {path}; {free_words(path)}.{asked}"
        do = "Remove files there or ask your administrators for a larger quota"
    elif reason == "read_only":
        what = f"The file system {mount} is read-only; {path} cannot be written."
        do = f"See `findmnt {mount}`; ask your administrators why (a kernel does this after a disk error)"
    else:
        place = existing(path)
        what = f"Permission denied for {path}: this process runs as user {os.geteuid()}"
        with contextlib.suppress(OSError):
            state = place.lstat()
            what += f"; {place} belongs to user {state.st_uid}, group {state.st_gid}, with mode {state.st_mode & 0o7777:04o}"
        what += "."
        do = "Change its owner or mode, or name another place"
    return what, f"{do}, {_AGAIN} {_ELSEWHERE}"


def _refusing(places: Sequence[Path], reason: str) -> Path | None:
    """Return the first place that refuses a write now. If none does: the first place, or None for a permission error."""
    failed = ((place, error) for place in places if (error := _try(place, PROBE_BYTES)))
    if reason == _NOT_PERMITTED:
        return next((place for place, error in failed if REASONS.get(error.errno or 0) == reason), None)
    return next((place for place, _ in failed), next(iter(places), None))


def _try(folder: Path, size: int) -> OSError | None:
    place = existing(folder)
    try:
        # No name, so nothing is left when this process is killed.
        with tempfile.TemporaryFile(dir=place if place.is_dir() else place.parent) as stream:
            stream.write(bytes(size))
            stream.flush()
            os.fsync(stream.fileno())
    except OSError as error:
        error.filename = os.fspath(folder)
        return error
    return None
