"""POSIX shared memory that killed servers leave in /dev/shm: recorded while they run, removed after their end.

Killed processes of vLLM, NCCL and Python leave memory that nobody frees. The name of a file can keep a later server from starting (vLLM's
ranks on CPUs use a port as name), and it does not show the file's owner.
"""

import contextlib
import os
import time
from pathlib import Path

from servemark.processes import identity

FOLDER = "/dev/shm"
# Reading the mappings of a server's processes takes some 10 ms. Servers make segments at their start, so the first intervals are short.
SOONEST_S, EVERY_S = 1.0, 10.0
# A file in the scratch folder, for the next attempt, in case the recording process is killed too.
NOTE = ".shared-memory"


class Segments:
    """Inode by name of the segments that descendants of this process have mapped; also recorded in the folder ``scratch``."""

    def __init__(self, scratch: Path | None):
        self._scratch = scratch
        self._began = time.monotonic()
        self._next = 0.0
        self.found: dict[str, int] = {}

    def look(self, *, now: bool = False) -> None:
        """Record the mapped segments ``now``, or if a tenth of the run time, at least SOONEST_S and at most EVERY_S, has passed."""
        clock = time.monotonic()
        if not now and clock < self._next:
            return
        self._next = clock + min(EVERY_S, max(SOONEST_S, (clock - self._began) / 10))
        known = len(self.found)
        for process in identity.descendants(os.getpid()):
            self.found |= mapped(process.pid)
        if self._scratch and len(self.found) > known:
            # Not write_atomically: it would make the folder again if another process has just removed it.
            with contextlib.suppress(OSError):
                text = "".join(f"{inode} {name}\n" for name, inode in sorted(self.found.items()))
                (self._scratch / f"{NOTE}.{os.getpid()}").write_text(text, errors="surrogateescape")

    def remove(self) -> tuple[str, ...]:
        """Remove the segments that remain after the end of the processes; return their names."""
        return _remove(self.found)


def mapped(pid: int) -> dict[str, int]:
    """Return the inode by name of the existing segments and semaphores that a process has mapped.

    glibc's sem_open makes a semaphore under a temporary name, maps it, and links it to its final name. The maps file of that process
    shows a deleted name, so this function finds the semaphore by its inode.
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
    """Remove the segments recorded in a scratch folder, whose processes have ended; return their names."""
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
            # Not a newer file of the same name.
            if (status.st_ino, status.st_uid) == (inode, os.getuid()):
                path.unlink()
                removed.append(name)
    return tuple(removed)
