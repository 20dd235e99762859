"""Start the processes of the benchmark client together, watch them and end them together, in the model environment.

usage: python run_clients.py ORDER.json

ORDER.json: {"processes": [ARGV, ...], "samples": FILE}. At the end FILE gets {"cpu": [...], "clock": [moment, time]}. For each process,
"cpu" has [moment, seconds] about once a second: the moment on the clock of the requests (CLOCK_MONOTONIC, as time.perf_counter on Linux),
and the CPU seconds of the process and its children. "clock" is one moment on that clock and on the wall clock (seconds since 1970). After
the first exit code other than 0, or signal N, this script ends the other processes and exits with that code, or with 128 + N.
"""

import contextlib
import ctypes
import glob
import json
import os
import signal
import socket
import subprocess
import sys
import time
from typing import Any

SAMPLE_S = 1.0
POLL_S = 0.05
GRACE_S = 2.0  # shorter than the grace period of this script
TICKS = os.sysconf("SC_CLK_TCK")
PR_SET_PDEATHSIG = 1
BARRIER = "SERVEMARK_START_BARRIER"  # as in bench_client.py


class Barrier:
    """Hold client processes until all are ready. Otherwise the first one would load the server during the warm-ups of the others.

    Each process has one end of a socket pair: it sends a byte when it is ready and waits for a byte.
    """

    def __init__(self) -> None:
        self.ends: list[socket.socket] = []
        self.ready: set[int] = set()

    def place(self) -> socket.socket:
        """Return the socket for one more process."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        self.ends.append(ours)
        return theirs

    def release_if_ready(self, ended: set[int]) -> bool:
        """Release all processes if each is ready or its number is in ``ended``; return whether they were released."""
        for number, end in enumerate(self.ends):
            with contextlib.suppress(OSError):
                if end.recv(1):
                    self.ready.add(number)
        if len(self.ready | ended) < len(self.ends):
            return False
        for end in self.ends:
            with contextlib.suppress(OSError):  # the process has ended
                end.send(b"g")
        print(f"run_clients.py: {len(self.ready)} client processes are ready and begin.", file=sys.stderr, flush=True)
        return True


def start(argv: list[str], barrier: Barrier | None) -> subprocess.Popen[bytes]:
    """Start a process in its own session; the kernel kills it when this process ends."""
    libc, parent = ctypes.CDLL(None), os.getpid()

    def die_with_parent() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # the parent ended before prctl
            os.kill(os.getpid(), signal.SIGKILL)

    with barrier.place() if barrier else contextlib.nullcontext() as end:
        given: dict[str, Any] = {} if end is None else {"pass_fds": [end.fileno()], "env": os.environ | {BARRIER: str(end.fileno())}}
        return subprocess.Popen(argv, start_new_session=True, preexec_fn=die_with_parent, **given)


def cpu_seconds(pid: int | str) -> float:
    """Return the CPU time of a process and its children, ended ones included (fields 14 to 17 of /proc/PID/stat)."""
    used = 0.0
    with contextlib.suppress(OSError):  # it has ended, and its parent has its CPU time
        with open(f"/proc/{pid}/stat") as stream:
            used += sum(map(int, stream.read().rpartition(")")[2].split()[11:15])) / TICKS
        for path in glob.glob(f"/proc/{pid}/task/*/children"):
            with contextlib.suppress(OSError), open(path) as stream:
                used += sum(map(cpu_seconds, stream.read().split()))
    return used


def end(processes: list[subprocess.Popen[bytes]]) -> None:
    """End the running processes and their sessions: SIGTERM, GRACE_S seconds, SIGKILL."""
    left = [process for process in processes if process.poll() is None]
    for number, patience_s in ((signal.SIGTERM, GRACE_S), (signal.SIGKILL, None)):
        deadline = time.monotonic() + (patience_s or 0.0)
        for process in left:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
        for process in left:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(None if patience_s is None else max(0.0, deadline - time.monotonic()))


def run(argvs: list[list[str]], samples: list[list[tuple[float, float]]], signals: list[int]) -> int:
    """Start the processes and wait for their end, a failure, or a signal in ``signals``; return the exit code."""
    barrier = held = Barrier() if len(argvs) > 1 else None
    processes: list[subprocess.Popen[bytes]] = []
    due = 0.0
    try:
        for argv in argvs:
            processes.append(start(argv, barrier))
        while not signals:
            now = time.perf_counter()
            codes = [process.poll() for process in processes]
            if now >= due:
                due = now + SAMPLE_S
                for taken, process, code in zip(samples, processes, codes, strict=True):
                    if code is None:
                        taken.append((round(now, 3), round(cpu_seconds(process.pid), 2)))
            if failed := [code for code in codes if code]:
                return failed[0] if failed[0] > 0 else 128 - failed[0]
            if all(code == 0 for code in codes):
                return 0
            ended = {number for number, code in enumerate(codes) if code == 0}
            if held and held.release_if_ready(ended):
                held = None
            time.sleep(POLL_S)
        return 128 + signals[0]
    finally:
        end(processes)


def main(path: str) -> int:
    """Run the processes of the order at ``path``; return the exit code."""
    with open(path) as stream:
        order = json.load(stream)
    signals: list[int] = []
    samples: list[list[tuple[float, float]]] = [[] for _ in order["processes"]]
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _: signals.append(number))
    code = run(order["processes"], samples, signals)
    with open(order["samples"], "w") as stream:
        json.dump({"cpu": samples, "clock": [time.perf_counter(), time.time()]}, stream)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
