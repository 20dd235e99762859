"""Run by the model environment's interpreter: the processes of the benchmark client, started together, watched and ended together.

usage: python run_clients.py ORDER.json

ORDER.json: {"processes": [ARGV, ...], "cpu": FILE}. FILE gets, for each process, [moment, seconds] once a second: the moment on the clock
that the client's own times are of (CLOCK_MONOTONIC, which time.perf_counter reads on Linux), and the CPU seconds that the process and its
children have used since it was started. Exits with the first code that is not 0, 128 + N for signal N; the other processes are ended then.

Several processes begin to measure together, if they run bench_client.py: who is ready first would load the server, and the others'
warm-ups would take many times as long.
"""

import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time

SAMPLE_S = 1.0
POLL_S = 0.05
# Less than the patience of whoever ends us.
GRACE_S = 2.0
TICKS = os.sysconf("SC_CLK_TCK")
PR_SET_PDEATHSIG = 1
# As in bench_client.py.
BARRIER = "SERVEMARK_START_BARRIER"


class Barrier:
    """Holds processes until all have said that they are ready, or until it is plain that one of them never will.

    Each gets one end of a socket. It sends a byte when it is ready, and goes on when it gets one. Its end closes when it ends, when it
    becomes another program, or at once where it cannot be held.
    """

    def __init__(self):
        self.ends, self.waiting, self.closed = [], set(), set()
        self.released = False
        self.begin = time.monotonic()

    def place(self):
        """The end for one more process; close it here once that is started."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        self.ends.append(ours)
        return theirs

    def look(self, codes):
        """Hear what the processes say; release all when the last one is ready. ``codes``: their exit codes, None while they run."""
        if self.released:
            return
        # A process that failed closes its end a moment before its exit code is there, so an end that closes counts at the next look.
        never = self.closed | {number for number, code in enumerate(codes) if code == 0}
        for number, end in enumerate(self.ends):
            with contextlib.suppress(BlockingIOError):
                (self.waiting if end.recv(1) else self.closed).add(number)
        if len(self.waiting - never) == len(self.ends):
            self.release(f"all are ready after {time.monotonic() - self.begin:.1f} s and begin to measure together.")
        elif never:
            numbers = ", ".join(str(number + 1) for number in sorted(never))
            self.release(
                f"number {numbers} cannot be waited for (it has ended, or its vLLM is unknown to bench_client.py): each begins when "
                "it is ready. A measurement during which they are at work together for too little of the time is SUSPECT "
                "(clients_out_of_step)."
            )

    def release(self, why):
        self.released = True
        for end in self.ends:
            with contextlib.suppress(OSError):  # that one is gone
                end.send(b"g")
        print(f"run_clients.py: of {len(self.ends)} client processes {why}", file=sys.stderr, flush=True)

    def close(self):
        for end in self.ends:
            end.close()


def start(argv, barrier=None):
    """A process in a session of its own, which is killed when we end in whatever way."""
    libc, parent = ctypes.CDLL(None), os.getpid()

    def die_with_parent():
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # we ended before that took effect
            os.kill(os.getpid(), signal.SIGKILL)

    with barrier.place() if barrier else contextlib.nullcontext() as end:
        told = {} if end is None else {"pass_fds": [end.fileno()], "env": os.environ | {BARRIER: str(end.fileno())}}
        return subprocess.Popen(argv, start_new_session=True, preexec_fn=die_with_parent, **told)


def children(pid):
    """Living children of a process, of all its threads (proc(5))."""
    found = []
    with contextlib.suppress(OSError):  # it ended, or this kernel does not list them
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children") as stream:
                found += map(int, stream.read().split())
    return found


def cpu_seconds(pid):
    """CPU time of a process, of its children and of those of them that have ended: fields 14 to 17 of /proc/PID/stat."""
    try:
        with open(f"/proc/{pid}/stat") as stream:
            fields = stream.read().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / TICKS + sum(map(cpu_seconds, children(pid)))
    except OSError:  # it ended while we looked: what it used is its parent's now
        return 0.0


def end(processes):
    """End what still runs, with all that it started in its session: TERM, grace, KILL."""
    left = [process for process in processes if process.poll() is None]
    for number, patience_s in ((signal.SIGTERM, GRACE_S), (signal.SIGKILL, None)):
        deadline = time.monotonic() + (patience_s or 0.0)
        for process in left:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
        for process in left:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(None if patience_s is None else max(0.0, deadline - time.monotonic()))


def run(argvs, samples, asked):
    """Start the processes and wait for their end, a failure, or a signal in ``asked``; the exit code."""
    processes = []
    barrier = Barrier() if len(argvs) > 1 else None
    try:
        for argv in argvs:
            processes.append(start(argv, barrier))
        due = 0.0
        while not asked:
            now = time.perf_counter()
            codes = [process.poll() for process in processes]
            if now >= due:
                due = now + SAMPLE_S
                for index, process in enumerate(processes):
                    if process.returncode is None:
                        samples[index].append((round(now, 3), round(cpu_seconds(process.pid), 2)))
            failed = [code for code in codes if code]
            if failed:
                return failed[0] if failed[0] > 0 else 128 - failed[0]
            if all(code == 0 for code in codes):
                return 0
            if barrier:
                barrier.look(codes)
            time.sleep(POLL_S)
        return 128 + asked[0]
    finally:
        end(processes)
        if barrier:
            barrier.close()


def main(path):
    with open(path) as stream:
        order = json.load(stream)
    asked = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _: asked.append(number))
    samples = [[] for _ in order["processes"]]
    code = run(order["processes"], samples, asked)
    with open(order["cpu"], "w") as stream:
        json.dump(samples, stream)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
