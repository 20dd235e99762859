"""Messages about failed writes: file system, free space, remedy."""

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
# With less free space a run fails in its first stages.
PROBE_BYTES = 2**20
_AGAIN = "then run the same command again. Finished measurements are kept."
_ELSEWHERE = (
    "To use another file system: `cache` moves the cache, SERVEMARK_RUNTIME_DIR the scratch folders, TMPDIR temporary files. "
    "Results, logs and .snakemake are in the checkout."
)


class StorageRefused(ServemarkError):
    """A file system is full or read-only, or this user has no permission."""

    default_reason = "disk_full"


class CacheClosed(ServemarkError):
    """The folder of shared environments and models takes no files."""

    default_reason = "cache_not_writable"

    def __init__(self, place: Path, error: OSError):
        why = refusal(error, place)
        super().__init__(
            f"Nothing can be written in {place}: {why.what if why else error.strerror or error}",
            do="Set `cache` (in the configuration or the cluster file) to a folder that you can write. The first user of a shared cache "
            "must make it writable for the group (umask 002).",
        )


def refusal(error: BaseException | None, places: Path | Sequence[Path] = (), *, needed: int | None = None) -> StorageRefused | None:
    """Return the message for a file system's OSError; None for other errors.

    A permission error without a file name counts only if one of ``places`` refuses a write now. It may come from a signal or a socket.

    Args:
        error: an OSError, or a library's error (safetensors) that quotes one. A failed ``write`` has no file name.
        places: possible places of the write. The message shows the first that refuses a write now.
        needed: size of the data in bytes, if known.
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
    """Return the OSError of a file system that a program's output quotes; None without one."""
    found = next((code for code in (*_FULL, errno.EROFS) if os.strerror(code) in text), None)
    return OSError(found, os.strerror(found)) if found else None


def probe(folders: Iterable[Path], size: int = PROBE_BYTES, *, shared: Iterable[Path] = ()) -> list[StorageRefused]:
    """Write ``size`` bytes into each folder, or its nearest existing parent; return one refusal for each file system.

    Args:
        shared: folders that may be read-only, because other users fill them. These count only if they are full.
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
    """Add the name ``path`` to an OSError of a write, which has no file name."""
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
    return next(folder for folder in (place, *place.parents) if os.path.ismount(folder))


def existing(path: Path) -> Path:
    """Return the absolute path of ``path``, or of its nearest existing parent."""
    place = Path(os.path.realpath(path))
    return next(folder for folder in (place, *place.parents) if os.path.lexists(folder))


def size(count: int) -> str:
    """Return a number of bytes with a unit, such as ``15.3 GiB``."""
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= factor:
            return f"{count / factor:,.1f} {unit}"
    return f"{count} bytes"


def free_words(path: Path) -> str:
    """Return ``the file system MOUNT has 1.0 GiB of 20.0 GiB free``, with a phrase if no inode is left."""
    mount = mount_point(path)
    try:
        state = os.statvfs(mount)
    except OSError as error:
        return f"the file system {mount} does not report its size ({error.strerror})"
    words = f"the file system {mount} has {size(state.f_bavail * state.f_frsize)} of {size(state.f_blocks * state.f_frsize)} free"
    return words + (f" and none of its {state.f_files:,} inodes" if state.f_files and not state.f_favail else "")


def _words(reason: str, path: Path | None, needed: int | None) -> tuple[str, str]:
    """Return the message and its remedy."""
    if path is None:
        return f"A file system refuses a write ({reason}).", f"Run `df -h`, free space, {_AGAIN} {_ELSEWHERE}"
    mount, asked = mount_point(path), f" {size(needed)} are needed." if needed else ""
    if reason == "disk_full":
        what, do = f"No space is left to write {path}: {free_words(path)}.{asked}", f"Free space on {mount}"
    elif reason == "quota_exceeded":
        what = f"Your disk quota is used up, so {path} cannot be written; {free_words(path)}.{asked}"
        do = "Remove files there or ask your administrators for a larger quota"
    elif reason == "read_only":
        what = f"The file system {mount} is read-only; {path} cannot be written."
        do = f"Run `findmnt {mount}` and ask your administrators for the cause (Linux does this after a disk error)"
    else:
        place = existing(path)
        what = f"Permission denied for {path}: this process runs as user {os.geteuid()}"
        with contextlib.suppress(OSError):
            state = place.lstat()
            what += f"; {place} belongs to user {state.st_uid}, group {state.st_gid}, with mode {state.st_mode & 0o7777:04o}"
        what += "."
        do = "Change its owner or mode, or set another folder"
    return what, f"{do}, {_AGAIN} {_ELSEWHERE}"


def _refusing(places: Sequence[Path], reason: str) -> Path | None:
    """Return the first place that refuses a write now, else the first place, or None for a permission error."""
    failed = ((place, error) for place in places if (error := _try(place, PROBE_BYTES)))
    if reason == _NOT_PERMITTED:
        return next((place for place, error in failed if REASONS.get(error.errno or 0) == reason), None)
    return next((place for place, _ in failed), next(iter(places), None))


def _try(folder: Path, size: int) -> OSError | None:
    place = existing(folder)
    try:
        # A file without a name leaves nothing if this process is killed.
        with tempfile.TemporaryFile(dir=place if place.is_dir() else place.parent) as stream:
            stream.write(bytes(size))
            stream.flush()
            os.fsync(stream.fileno())
    except OSError as error:
        error.filename = os.fspath(folder)
        return error
    return None
