"""POSIX shared memory that killed servers leave in /dev/shm: noted while they live, removed after their end.

Killed processes of vLLM, NCCL and Python leave memory that nobody frees, and names that can keep a later server from starting (vLLM's
CPU ranks name theirs by a port). Such a file does not name its owner.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from servemark.processes import identity

FOLDER = "/dev/shm"
# Reading the mappings of a server's processes takes some 10 ms. Segments are made while servers start: young trees are read more often.
SOONEST_S, EVERY_S = 1.0, 10.0
# In a scratch folder, for the next attempt, if the process that noted the segments was killed too.
NOTE = ".shared-memory"


class Segments:
    """Inode by name of the segments that descendants of this process have mapped; noted below the folder ``scratch`` as well."""

    def __init__(self, scratch: Path | None):
        self._scratch = scratch
        self._began = time.monotonic()
        self._next = 0.0
        self.found: dict[str, int] = {}

    def look(self, *, now: bool = False) -> None:
        """Note what is mapped: ``now``, or after a tenth of the time so far, within :data:`SOONEST_S` and :data:`EVERY_S`."""
        clock = time.monotonic()
        if not now and clock < self._next:
            return
        self._next = clock + min(EVERY_S, max(SOONEST_S, (clock - self._began) / 10))
        known = len(self.found)
        for process in identity.descendants(os.getpid()):
            self.found |= mapped(process.pid)
        if self._scratch and len(self.found) > known:
            # Not write_atomically: it would make a folder again that another process has just removed.
            with contextlib.suppress(OSError):
                text = "".join(f"{inode} {name}\n" for name, inode in sorted(self.found.items()))
                (self._scratch / f"{NOTE}.{os.getpid()}").write_text(text, errors="surrogateescape")

    def remove(self) -> tuple[str, ...]:
        """Remove those that are left after the tree's end; return their names."""
        return _remove(self.found)


def mapped(pid: int) -> dict[str, int]:
    """Return the inode by name of the segments and semaphores that a process has mapped and that still have a name.

    glibc's sem_open makes a semaphore under a temporary name, maps it, and links it to its own name. So its maker has a deleted name
    mapped, and the semaphore is found by its inode.
    """
    found, deleted = {}, set()
    with contextlib.suppress(OSError), open(f"/proc/{pid}/maps", errors="surrogateescape") as lines:
        for line in lines:
            # address permissions offset device inode path (proc_pid_maps(5))
            words = line.rstrip("\n").split(None, 5)
            if len(words) < 6 or not words[5].startswith(f"{FOLDER}/"):
                continue
            if words[5].endswith(" (deleted)"):
                deleted.add(int(words[4]))
            else:
                found[words[5].removeprefix(f"{FOLDER}/")] = int(words[4])
    if deleted:
        with contextlib.suppress(OSError), os.scandir(FOLDER) as entries:
            found |= {entry.name: entry.inode() for entry in entries if entry.inode() in deleted}
    return found


def remove_noted(scratch: Path) -> tuple[str, ...]:
    """Remove the segments noted in a scratch folder whose processes have ended; return their names."""
    found: dict[str, int] = {}
    for note in scratch.glob(f"{NOTE}.*"):
        with contextlib.suppress(OSError, ValueError):
            for line in note.read_text(errors="surrogateescape").splitlines():
                inode, name = line.split(" ", 1)
                found[name] = int(inode)
    return _remove(found)


def _remove(segments: dict[str, int]) -> tuple[str, ...]:
    removed = []
    for name, inode in sorted(segments.items()):
        path = Path(FOLDER, name)
        with contextlib.suppress(OSError):
            status = path.lstat()
            # A file of that name made since is another one.
            if (status.st_ino, status.st_uid) == (inode, os.getuid()):
                path.unlink()
                removed.append(name)
    return tuple(removed)
