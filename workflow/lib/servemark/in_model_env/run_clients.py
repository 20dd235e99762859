"""Run the client processes of one load point in the deployment's client_server.py, in the model environment.

usage: python run_clients.py SOCKET STATE.json ORDER.json

STATE.json is the supervisor's record of client_server.py: ``ended_at`` is not null if that process has ended. The client processes write to
this script's standard output and standard error. Its exit code is theirs: see client_server.py. After signal N it ends them and exits with
128 + N. Code 75: client_server.py has ended, and no client process was started.
"""

import contextlib
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Sequence
from types import FrameType

POLL_S = 0.05
# Longer than client_server.py needs to end its processes, and shorter than the grace period of this script.
GRACE_S = 2.5
# While slurmctld does not respond, servemark repeats srun for 600 s, and then there is no socket.
PATIENCE_S = 660.0
GONE = os.EX_TEMPFAIL

ENDED = """run_clients.py: The client server ended before it started a client process.
servemark starts another one, once for each load point.
If this load point is INVALID, read {log}, fix the cause, and rerun the same command."""
NO_SOCKET = """run_clients.py: The client server did not open its socket {socket} within {patience:.0f} s.
Read {log} and, in a Slurm job, {launcher_log}. Fix the cause, and rerun the same command."""
NO_CLIENT = """run_clients.py: The client server could not import vLLM's client, so no request was sent. The traceback follows.
If the environment has a `lock`, delete its folder in the cache. Otherwise repair the environment. Then rerun the same command.
{error}"""
LOST = """run_clients.py: The connection to the client server closed before the client ended.
If a traceback stands above, it is the cause. Otherwise read {log}.
If it has no error, the kernel or Slurm may have killed the process for lack of memory. Then rerun the same command."""


def connected(path: str, state: str, signals: Sequence[int]) -> socket.socket | None:
    """Return a connection to client_server.py as soon as it has its socket; None after a signal.

    Raises:
        ConnectionRefusedError: client_server.py has ended.
        TimeoutError: it has no socket after PATIENCE_S.
    """
    deadline = time.monotonic() + PATIENCE_S
    while not signals:
        with contextlib.ExitStack() as attempt:
            connection = attempt.enter_context(socket.socket(socket.AF_UNIX))
            try:
                connection.connect(path)
            except FileNotFoundError:
                if read(state)["ended_at"] is not None:
                    raise ConnectionRefusedError from None
                if time.monotonic() > deadline:
                    raise TimeoutError from None
            else:
                attempt.pop_all()
                return connection
        time.sleep(POLL_S)
    return None


def read(state: str) -> dict[str, str | None]:
    """Return the supervisor's record of client_server.py."""
    with open(state) as stream:
        found: dict[str, str | None] = json.load(stream)
    return found


def response(connection: socket.socket, signals: Sequence[int]) -> dict[str, int | str]:
    """Wait for the response; after a signal end our side of the connection and wait GRACE_S. Return an empty response if there is none."""
    text, deadline = b"", None
    while not text.endswith(b"\n") and (deadline is None or time.monotonic() < deadline):
        if signals and deadline is None:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_WR)
            deadline = time.monotonic() + GRACE_S
        if select.select([connection], [], [], POLL_S)[0]:
            received = connection.recv(65536)
            if not received:
                break
            text += received
    found: dict[str, int | str] = json.loads(text) if text.endswith(b"\n") else {}
    return found


def main(path: str, state: str, order: str) -> int:
    """Run the order's processes; return the exit code."""
    signals: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        signals.append(number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, note)
    log = str(read(state)["log"])
    found: dict[str, int | str] = {}
    try:
        if connection := connected(path, state, signals):
            with connection, contextlib.suppress(ConnectionError):
                socket.send_fds(connection, [json.dumps({"order": order}).encode()], [1, 2])
                found = response(connection, signals)
    except ConnectionRefusedError:
        print(ENDED.format(log=log), file=sys.stderr)
        return GONE
    except TimeoutError:
        launcher_log = f"{os.path.splitext(log)[0]}.launcher.log"
        print(NO_SOCKET.format(socket=path, patience=PATIENCE_S, log=log, launcher_log=launcher_log), file=sys.stderr)
        return 1
    if signals:
        return 128 + signals[0]
    if isinstance(code := found.get("code"), int):
        return code
    print(NO_CLIENT.format(error=found["error"]) if "error" in found else LOST.format(log=log), file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
