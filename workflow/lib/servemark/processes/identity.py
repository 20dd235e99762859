"""Processes: which are alive, which one we work for (the owner process), which belong to an attempt. Linux only.

A process is identified by its id *and* its start time, because Linux reuses ids.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import signal
import socket
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import psutil

OWNER_PROCESS_VARIABLE = "SERVEMARK_OWNER_PROCESS"
MARK_VARIABLE = "SERVEMARK_ATTEMPT"
NODE_VARIABLE = "SERVEMARK_NODE"
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


def host() -> str:
    """Return this machine's name. A process id is valid only together with it."""
    return socket.gethostname()


def here() -> str:
    """Return this node's name in the scheduler, else the host name."""
    return os.environ.get("SLURMD_NODENAME") or host()


@dataclass(frozen=True)
class Identity:
    """A process: id, start time in clock ticks since boot (field 22 of /proc/PID/stat, see proc(5)), and host."""

    pid: int
    start: int
    host: str = field(default_factory=host)

    @classmethod
    def of(cls, pid: int) -> Identity | None:
        """Return the identity of a living process; None if there is none.

        A zombie with threads counts as living: its first thread has ended, and the others still use its memory, also on a GPU.
        """
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except (OSError, ValueError):
            return None
        return None if fields[0] in "ZX" and int(fields[17]) <= 1 else cls(pid, int(fields[19]))

    @classmethod
    def parse(cls, text: str) -> Identity:
        """Parse ``PID:START@HOST``, the form of ``str``."""
        process, _, where = text.partition("@")
        pid, start = process.split(":")
        return cls(int(pid), int(start), where)

    def __str__(self) -> str:
        return f"{self.pid}:{self.start}@{self.host}"

    @property
    def here(self) -> bool:
        """Whether this is or was a process of this machine. Processes of other machines are not visible here."""
        return self.host == host()

    @property
    def alive(self) -> bool:
        """Whether this process runs on this machine."""
        return Identity.of(self.pid) == self

    def signal(self, number: int) -> None:
        """Send a signal, unless the process has ended and another one has its id."""
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


def myself() -> Identity:
    """Return this process."""
    identity = Identity.of(os.getpid())
    assert identity is not None, "a running process has an entry in /proc"
    return identity


def export_owner_process() -> None:
    """Make this process the owner process of everything started from here on."""
    os.environ[OWNER_PROCESS_VARIABLE] = str(myself())


def owner_process() -> Identity:
    """Return the process we work for: the Snakemake that parsed the workflow here, or our parent when run by hand."""
    return _exported_owner_process() or Identity.of(os.getppid()) or myself()


def ensure_owner_process() -> None:
    """Make this process the owner process unless one of this machine is: a job inherits the variable of the machine that submitted it."""
    if _exported_owner_process() is None:
        export_owner_process()


def _exported_owner_process() -> Identity | None:
    text = os.environ.get(OWNER_PROCESS_VARIABLE)
    found = Identity.parse(text) if text else None
    return found if found and found.here else None


def become_subreaper() -> None:
    """Adopt orphaned descendants, so that :func:`descendants` includes daemons that detach themselves."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent() -> None:
    """Have the kernel kill this process when the thread that started it ends (prctl(2)); for the ``preexec_fn`` of a child."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def descendants(pid: int) -> list[psutil.Process]:
    """Return every living descendant of a process, zombies excluded."""
    try:
        found = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    return [p for p in found if _running(p)]


def _running(process: psutil.Process) -> bool:
    return process.is_running() and Identity.of(process.pid) is not None


def signal_all(processes: Iterable[psutil.Process], number: int) -> None:
    """Signal each process, unless it has ended and another one has its id."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            process.send_signal(number)


def mark(attempt: Path) -> dict[str, str]:
    """Return the variable of all processes of an attempt. Its path is absolute, because other checkouts have attempts of the same name."""
    return {MARK_VARIABLE: str(attempt.absolute())}


def marked(*folders: Path, but: Path | None = None) -> list[psutil.Process]:
    """Return this user's processes on this machine that belong to an attempt in one of ``folders``, except those of ``but``.

    They have the variable of :func:`mark`, or write their output below the attempt's folder. vLLM and Ray rename their processes, which
    overwrites the environment in /proc.
    """
    roots = tuple(f"{folder.absolute()}/" for folder in folders)
    spared = (f"{but.absolute()}/",) if but else ()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError, psutil.NoSuchProcess):
            places = [*_mark_of(entry), *(os.readlink(entry / "fd" / number) for number in ("1", "2"))]
            if any(place.startswith(roots) for place in places) and not any(place.startswith(spared) for place in places):
                found.append(psutil.Process(int(entry.name)))
    return [p for p in found if _running(p)]


def _mark_of(entry: Path) -> list[str]:
    name = f"{MARK_VARIABLE}=".encode()
    words = (entry / "environ").read_bytes().split(b"\0")
    return [os.fsdecode(word.removeprefix(name)) + "/" for word in words if word.startswith(name)]


def describe(process: psutil.Process) -> str:
    """Return a process id and the first 80 characters of the command, for messages."""
    try:
        return f"{process.pid} {' '.join(process.cmdline())[:80] or process.name()}"
    except psutil.Error:
        return str(process.pid)


def wait_for_end(watched: Identity, timeout_s: float = math.inf) -> bool:
    """Block until the process has ended (True) or the time is over (False)."""
    deadline = time.monotonic() + timeout_s
    while watched.alive:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
