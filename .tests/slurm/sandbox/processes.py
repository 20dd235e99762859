"""Processes of the machine: identity, namespaces, ends."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .options import SandboxError

_CLONE_NEWPID = 0x20000000  # linux/sched.h
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Process:
    """A process by process id and start time (clock ticks since boot), so that a reused id is another process."""

    pid: int
    start: int

    @classmethod
    def of(cls, pid: int) -> Process:
        """Return the process that has this id now. Raises ProcessLookupError if there is none."""
        start = _start_time(pid)
        if start is None:
            raise ProcessLookupError(f"no process {pid}")
        return cls(pid, start)

    def alive(self) -> bool:
        """Whether the process is alive (a zombie is not)."""
        return _start_time(self.pid) == self.start

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal, unless the process has ended."""
        try:
            descriptor = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return
        try:
            # The descriptor comes first: the start time then tells whether the id was reused.
            if self.alive():
                signal.pidfd_send_signal(descriptor, number)
        except ProcessLookupError:
            pass
        finally:
            os.close(descriptor)

    def wait(self, seconds: float) -> bool:
        """Wait until the process has ended; return False after the time limit."""
        try:
            descriptor = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return True
        try:
            if not self.alive():
                return True
            ready, _, _ = select.select([descriptor], [], [], seconds)
            return bool(ready)
        finally:
            os.close(descriptor)


@dataclass(frozen=True)
class NodeProcess:
    """A process of a node: its id on the machine, its id on the node, its command line (blank-separated)."""

    pid: int
    node_pid: int
    command: str


def _start_time(pid: int) -> int | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else int(fields[19])  # field 22 of proc(5) is the 20th after the name


def namespace(pid: int, kind: str) -> int | None:
    """Return the inode of a process's namespace of a kind (``pid``, ``net``, ...); None if it cannot be read."""
    try:
        return os.stat(f"/proc/{pid}/ns/{kind}").st_ino
    except OSError:
        return None


def numbers() -> Iterator[int]:
    """Return the ids of all processes of the machine."""
    return (int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit())


def environment_of(pid: int) -> dict[str, str]:
    """Return the initial environment of a process; empty if it has ended or has none."""
    try:
        raw = Path(f"/proc/{pid}/environ").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return {}
    pairs = (item.partition("=") for item in raw.decode(errors="replace").split("\0") if "=" in item)
    return {name: value for name, _, value in pairs}


def node_numbers(pid: int) -> tuple[int, ...]:
    """Return a process's ids, from the machine's process namespace to its own; empty if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return ()
    return next((tuple(map(int, line.split()[1:])) for line in lines if line.startswith("NSpid:")), ())


def in_namespace(inode: int) -> list[NodeProcess]:
    """Return the living processes of one process namespace."""
    found = []
    for pid in numbers():
        if namespace(pid, "pid") != inode or _start_time(pid) is None:
            continue
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if own := node_numbers(pid):
            found.append(NodeProcess(pid, own[-1], command))
    return sorted(found, key=lambda process: process.node_pid)


def spawn(argv: Sequence[str], init: int, **options: Any) -> subprocess.Popen[Any]:
    """Start subprocess.Popen with the child in the process namespace of the process ``init``.

    The Popen object is the command itself (its exit code, its signals), without a process in between as with nsenter's ``--pid``. The
    namespace for children is a property of a thread, so each call has its own thread.
    """
    result: list[subprocess.Popen[Any]] = []
    failure: list[BaseException] = []

    def work() -> None:
        try:
            descriptor = os.pidfd_open(init)
            try:
                if _libc.setns(descriptor, _CLONE_NEWPID) != 0:
                    number = ctypes.get_errno()
                    raise OSError(number, f"setns to the processes of {init}: {os.strerror(number)}")
            finally:
                os.close(descriptor)
            result.append(subprocess.Popen(list(argv), **options))
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return result[0]


def wait_for(ready: Callable[[], Any], seconds: float, what: str) -> Any:
    """Poll ``ready`` until it returns a true value; SandboxError names ``what`` was not ready in time."""
    deadline = time.monotonic() + seconds
    while True:
        answer = ready()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise SandboxError(f"{what}: not within {seconds:g} s.")
        time.sleep(0.05)
