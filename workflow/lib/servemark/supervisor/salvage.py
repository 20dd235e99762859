"""Keep logs from the scratch folder of a node when their process ended by itself: the scratch folder is removed."""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

MOST_FILES = 20
TAIL_BYTES = 256 * 1024
# The run learns of the end after the copies; a slow shared disk must not delay that for long.
MOST_S = 10.0
_LOG_BYTES = 1 << 20
# Of Ray's processes the raylet ends first; the others only report that it is gone.
_ORDER = ("raylet.", "gcs_server.", "worker-")


def folder(log: str | Path, name: str) -> Path:
    """Return where the files of the process ``name`` are kept: next to its log."""
    return Path(log).parent / f"{name}.kept"


def files(where: Path) -> list[Path]:
    """Return the kept files, the most telling first."""

    def place(path: Path) -> tuple[int, str]:
        return next((i for i, begin in enumerate(_ORDER) if path.name.startswith(begin)), len(_ORDER)), path.name

    return sorted((path for path in where.iterdir() if path.is_file()), key=place) if where.is_dir() else []


def keep(scratch: Path, patterns: Sequence[str], log: Path, target: Path) -> None:
    """Copy the last 256 KiB of each of at most 20 files into ``target``, readable by this user alone, within 10 s.

    Raises nothing: a file that cannot be copied is left out.

    Args:
        patterns: globs relative to ``scratch``, the most telling first; of each the newest files come first. Links are not followed.
        log: the process's own log. Several processes may use one scratch folder: if the log names some of its subfolders, only
            files in these are taken.
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
            # A path over a link is another name of a file, or leads out of the folder.
            direct = Path(os.path.realpath(path)) == real / path.relative_to(scratch)
            if stat.S_ISREG(status.st_mode) and status.st_size > 0 and direct:
                yield status.st_mtime, path


def _copy_end(source: Path, target: Path) -> None:
    """Copy the file's last bytes, from the beginning of a line on."""
    with open(os.open(source, os.O_RDONLY | os.O_NOFOLLOW), "rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        stream.seek(max(0, size - TAIL_BYTES))
        data = stream.read(TAIL_BYTES)
    if size > TAIL_BYTES:
        data = data[data.find(b"\n") + 1 :]
    with open(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb") as stream:
        stream.write(data)
