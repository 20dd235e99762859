"""Import vLLM's client once for a deployment, and run the client processes of each load point as forks, in the model environment.

usage: python client_server.py SOCKET

The imports take 8 s of CPU, and longer with CUDA, during which the GPUs would wait before each load point. A fork and vLLM's command line
take a tenth of a second.

A connection to SOCKET is one load point; the next one waits until it has ended. run_clients.py sends the path of an order, and two file
descriptors for standard output and standard error. The order is a JSON file: {"processes": [ARGV, ...], "variables": {NAME: VALUE},
"samples": FILE}. At the end, run_clients.py gets the line ``{"code": N}``, or ``{"error": TEXT}`` if the imports failed. N is 0, or the
exit code of the first client process that failed, or 128 + S if signal S killed it; client_server.py then ends the others. If
run_clients.py closes its side of the connection, client_server.py ends all client processes.

At the end FILE gets {"cpu": [...], "clock": [moment, time]}. For each process, "cpu" has [moment, seconds] about once a second: the moment
on the clock of the requests (CLOCK_MONOTONIC, as time.perf_counter on Linux), and the CPU seconds of the process and its children. "clock"
is one moment on that clock and on the wall clock (seconds since 1970).
"""

import contextlib
import ctypes
import gc
import glob
import json
import multiprocessing
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from multiprocessing.context import ForkProcess
from typing import Any

SAMPLE_S = 1.0
POLL_S = 0.05
GRACE_S = 2.0  # shorter than the grace period of run_clients.py
TICKS = os.sysconf("SC_CLK_TCK")
PR_SET_PDEATHSIG, PR_SET_NAME = 1, 15
BARRIER = "SERVEMARK_START_BARRIER"  # as in bench_client.py
FORK = multiprocessing.get_context("fork")
# Runs one client process with its command line, whose first word is the script; the value is for sys.exit.
Client = Callable[[list[str]], Any]


class Barrier:
    """Make client processes wait until all are ready. Otherwise the first one would load the server during the warm-ups of the others.

    Each process has one end of a socket pair: it sends a byte when it is ready and waits for a byte.
    """

    def __init__(self) -> None:
        self.ends: list[socket.socket] = []
        self.ready: set[int] = set()

    def add_process(self) -> socket.socket:
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
        print(f"client_server.py: {len(self.ready)} client processes are ready and start to send requests.", file=sys.stderr, flush=True)
        return True


def become(name: str, parent: int | None = None) -> None:
    """Give this process a name that ps and top show. With ``parent``, the kernel kills this process when that one ends."""
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_NAME, name.encode(), 0, 0, 0)
    if parent is not None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # the parent ended before prctl
            os.kill(os.getpid(), signal.SIGKILL)


def start(client: Client, argv: list[str], barrier: Barrier | None, connection: socket.socket) -> ForkProcess:
    """Fork one client process in its own process group; the kernel kills it when this process ends."""
    end = barrier.add_process() if barrier else None
    foreign = [connection, *(barrier.ends if barrier else ())]
    process = FORK.Process(target=run_client, args=(client, argv, end, foreign, os.getpid()))
    process.start()
    with contextlib.suppress(OSError):  # the process did so itself, and may have ended
        os.setpgid(process.pid or 0, process.pid or 0)
    if end is not None:
        end.close()
    return process


def run_client(client: Client, argv: list[str], end: socket.socket | None, foreign: list[socket.socket], parent: int) -> None:
    """Run a client process: the target of its fork. An open ``foreign`` socket would hide another process's end from its other side."""
    os.setpgid(0, 0)
    become("bench-client", parent)
    for other in foreign:
        other.close()
    if end is not None:
        os.environ[BARRIER] = str(end.detach())
    sys.argv = argv[1:]
    sys.exit(client(sys.argv))


def cpu_seconds(pid: int | str | None) -> float:
    """Return the CPU time of a process and its children, ended ones included (fields 14 to 17 of /proc/PID/stat)."""
    used = 0.0
    with contextlib.suppress(OSError):  # it has ended, and its parent has its CPU time
        with open(f"/proc/{pid}/stat") as stream:
            used += sum(map(int, stream.read().rpartition(")")[2].split()[11:15])) / TICKS
        for path in glob.glob(f"/proc/{pid}/task/*/children"):
            with contextlib.suppress(OSError), open(path) as stream:
                used += sum(map(cpu_seconds, stream.read().split()))
    return used


def end_all(processes: list[ForkProcess]) -> None:
    """End the running processes and their groups: SIGTERM, GRACE_S seconds, SIGKILL."""
    left = [process for process in processes if process.exitcode is None]
    for number, patience_s in ((signal.SIGTERM, GRACE_S), (signal.SIGKILL, None)):
        deadline = time.monotonic() + (patience_s or 0.0)
        for process in left:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid or 0, number)
        for process in left:
            process.join(None if patience_s is None else max(0.0, deadline - time.monotonic()))


def run(client: Client, argvs: list[list[str]], samples: list[list[tuple[float, float]]], connection: socket.socket) -> int:
    """Start the processes and wait for their end, a failure, or the end of the connection; return the exit code."""
    barrier = waiting = Barrier() if len(argvs) > 1 else None
    processes: list[ForkProcess] = []
    due = 0.0
    try:
        for argv in argvs:
            processes.append(start(client, argv, barrier, connection))
        while not hung_up(connection):
            now = time.perf_counter()
            codes = [process.exitcode for process in processes]
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
            if waiting and waiting.release_if_ready(ended):
                waiting = None
            time.sleep(POLL_S)
        return 128 + signal.SIGHUP
    finally:
        end_all(processes)


def received(connection: socket.socket) -> str:
    """Return the path of the order, and write to the standard output and error of run_clients.py from now on.

    Raises:
        EOFError: run_clients.py has ended.
    """
    message, descriptors, *_ = socket.recv_fds(connection, 65536, 2)
    if len(descriptors) != 2 or hung_up(connection):
        raise EOFError
    for number, descriptor in enumerate(descriptors, 1):
        os.dup2(descriptor, number)
        os.close(descriptor)
    order: str = json.loads(message)["order"]
    return order


def run_point(client: Client, connection: socket.socket, listener: socket.socket, parent: int) -> None:
    """Run the processes of one load point: the target of its fork."""
    become("client-point", parent)
    listener.close()
    try:
        with open(received(connection)) as stream:
            order = json.load(stream)
    except EOFError:
        return
    os.environ.update(order["variables"])
    samples: list[list[tuple[float, float]]] = [[] for _ in order["processes"]]
    code = run(client, order["processes"], samples, connection)
    try:
        with open(order["samples"], "w") as stream:
            json.dump({"cpu": samples, "clock": [time.perf_counter(), time.time()]}, stream)
    except OSError as error:
        print(f"client_server.py: the CPU time of the client is not recorded: {error}", file=sys.stderr)
    respond(connection, code=code)


def hung_up(connection: socket.socket) -> bool:
    """Return whether run_clients.py has ended its side. It sends nothing after its order."""
    return bool(select.select([connection], [], [], 0)[0])


def respond(connection: socket.socket, **response: int | str) -> None:
    """Send the response, if run_clients.py still waits for it."""
    with contextlib.suppress(OSError):
        connection.sendall(json.dumps(response).encode() + b"\n")


def serve(path: str, load: Callable[[], Client]) -> int:
    """Import the client, then run the load points that connect to the socket; return the exit code if the import failed."""
    become("client-server")
    with socket.socket(socket.AF_UNIX) as listener:
        # The name appears when connections are accepted: a refused one then means that this process has ended.
        listener.bind(f"{path}.new")
        listener.listen()
        os.rename(f"{path}.new", path)
        try:
            client = load()
        except BaseException:
            traceback.print_exc()
            with listener.accept()[0] as connection, contextlib.suppress(EOFError):
                received(connection)
                respond(connection, error=traceback.format_exc())
            return 1
        gc.freeze()  # a collection in a fork would copy all pages
        while True:
            with listener.accept()[0] as connection:
                point = FORK.Process(target=run_point, args=(client, connection, listener, os.getpid()))
                point.start()
            # Otherwise clients of a point whose run_clients.py was killed would load the server during the next point.
            point.join()


def vllms_client() -> Client:
    """Import all that vLLM's command line imports for its client; return the function that runs it.

    Raises:
        RuntimeError: vLLM's command line did not print its help.
    """
    folder = os.path.dirname(os.path.abspath(__file__))
    sys.path.insert(0, folder)
    import bench_client

    # This folder's modules must not hide others.
    sys.path[:] = [place for place in sys.path if os.path.abspath(place) != folder]
    # In this order, because bench_client.py changes this module before it calls vLLM's command line.
    from vllm.benchmarks.lib import endpoint_request_func  # noqa: F401
    from vllm.entrypoints.cli.main import main as vllm

    given, sys.argv = sys.argv, ["vllm", "bench", "serve", "--help"]
    try:
        with open(os.devnull, "w") as nothing, contextlib.redirect_stdout(nothing):
            vllm()
    except SystemExit as ended:
        if ended.code:
            raise RuntimeError(f"vllm bench serve --help exited with {ended.code}") from None
    finally:
        sys.argv = given
    client: Client = bench_client.main
    return client


if __name__ == "__main__":
    sys.exit(serve(sys.argv[1], vllms_client))
