"""Keep logs from a node's scratch folder after their process ended by itself, before the folder is removed."""

import contextlib
import os
import stat
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

MOST_FILES = 20
TAIL_BYTES = 256 * 1024
# The supervisor learns of the end only after the copies, so a slow shared disk may delay it by this much.
MOST_S = 10.0
_LOG_BYTES = 1 << 20
# The raylet's log comes first: Ray's other processes only report that it is gone.
_ORDER = ("raylet.", "gcs_server.", "worker-")


def folder(log: str | Path, name: str) -> Path:
    """Return the folder, next to the log, in which the files of the process ``name`` are kept."""
    return Path(log).parent / f"{name}.kept"


def files(where: Path) -> list[Path]:
    """Return the kept files, most important first."""

    def place(path: Path) -> tuple[int, str]:
        return next((i for i, begin in enumerate(_ORDER) if path.name.startswith(begin)), len(_ORDER)), path.name

    return sorted((path for path in where.iterdir() if path.is_file()), key=place) if where.is_dir() else []


def keep(scratch: Path, patterns: Sequence[str], log: Path, target: Path) -> None:
    """Copy the last 256 KiB of at most 20 files into ``target`` within 10 s, readable by this user alone.

    Files that cannot be copied are left out.

    Args:
        patterns: globs relative to ``scratch``, most important first; the newest files of each come first. Links are not followed.
        log: the process's own log. If it names subfolders of ``scratch``, only files in these are copied: processes share the folder.
    """
    deadline = time.monotonic() + MOST_S
    with contextlib.suppress(OSError):
        target.mkdir(mode=0o700, exist_ok=True)
        for path in _chosen(scratch, patterns, log):
            if time.monotonic() > deadline:
                return
            with contextlib.suppress(OSError):
                _copy_end(path, target / path.name)


def _chosen(scratch: Path, patterns: Sequence[str], log: Path) -> list[Path]:
    text = ""
    with contextlib.suppress(OSError), open(log, errors="replace") as stream:
        text = stream.read(_LOG_BYTES)
    found = [path for pattern in patterns for _, path in sorted(_dated(scratch, pattern), reverse=True)]
    own = [path for path in found if path.relative_to(scratch).parts[0] in text]
    by_name: dict[str, Path] = {}
    for path in own or found:
        by_name.setdefault(path.name, path)
    return list(by_name.values())[:MOST_FILES]


def _dated(scratch: Path, pattern: str) -> Iterator[tuple[float, Path]]:
    real = Path(os.path.realpath(scratch))
    for path in scratch.glob(pattern):
        with contextlib.suppress(OSError):
            status = path.lstat()
            # A path through a link may lead out of the folder.
            direct = Path(os.path.realpath(path)) == real / path.relative_to(scratch)
            if stat.S_ISREG(status.st_mode) and status.st_size > 0 and direct:
                yield status.st_mtime, path


def _copy_end(source: Path, target: Path) -> None:
    """Copy the end of a file, from the beginning of a line."""
    with open(os.open(source, os.O_RDONLY | os.O_NOFOLLOW), "rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        stream.seek(max(0, size - TAIL_BYTES))
        data = stream.read(TAIL_BYTES)
    if size > TAIL_BYTES:
        data = data[data.find(b"\n") + 1 :]
    with open(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb") as stream:
        stream.write(data)
