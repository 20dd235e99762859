"""Run the client processes of one load point in the deployment's client_server.py, in the model environment.

usage: python run_clients.py SOCKET STATE.json ORDER.json

STATE.json is the supervisor's record of client_server.py: ``ended_at`` is not null if that process has ended. The client processes write to
this script's standard output and standard error. Its exit code is theirs: see client_server.py. After signal N it ends them and exits with
128 + N.
"""

import contextlib
import json
import select
import signal
import socket
import sys
import time
from collections.abc import Sequence
from types import FrameType

POLL_S = 0.05
ENDED = "run_clients.py: client_server.py has ended, so nothing was measured. Its log is client-server.log in the attempt's folder."


def connected(path: str, state: str, signals: Sequence[int]) -> socket.socket | None:
    """Return a connection to client_server.py as soon as it has its socket; None after a signal, or if it has ended."""
    while not signals:
        with contextlib.ExitStack() as attempt:
            connection = attempt.enter_context(socket.socket(socket.AF_UNIX))
            try:
                connection.connect(path)
            except FileNotFoundError:
                if has_ended(state):
                    return None
            except ConnectionRefusedError:
                return None
            else:
                attempt.pop_all()
                return connection
        time.sleep(POLL_S)
    return None


def has_ended(state: str) -> bool:
    """Return whether the supervisor has recorded the end of client_server.py."""
    with open(state) as stream:
        return json.load(stream)["ended_at"] is not None


def response(connection: socket.socket, signals: Sequence[int]) -> dict[str, int | str]:
    """Wait for the response; end our side of the connection after a signal. Return an empty response if there is none."""
    text, open_side = b"", True
    while not text.endswith(b"\n"):
        if signals and open_side:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_WR)
            open_side = False
        if select.select([connection], [], [], POLL_S)[0]:
            received = connection.recv(65536)
            if not received:
                return {}
            text += received
    found: dict[str, int | str] = json.loads(text)
    return found


def main(path: str, state: str, order: str) -> int:
    """Run the order's processes; return the exit code."""
    signals: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        signals.append(number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, note)
    found: dict[str, int | str] = {}
    if connection := connected(path, state, signals):
        with connection, contextlib.suppress(ConnectionError):
            socket.send_fds(connection, [json.dumps({"order": order}).encode()], [1, 2])
            found = response(connection, signals)
    if signals:
        return 128 + signals[0]
    code = found.get("code")
    if not isinstance(code, int):
        print(found.get("error", ENDED), file=sys.stderr)
        return 1
    return code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
