"""Find free ports of this machine, and keep them while their programs start."""

from __future__ import annotations

import contextlib
import socket

import psutil

# Below Linux's default ephemeral range (32768-60999) and above the well-known ports.
PORTS = range(20000, 32000)
CALL_S = 1.0


def is_taken(host: str, port: int) -> bool:
    """Return whether a program has bound this port, also one that does not listen yet, as vLLM's server while it loads.

    Only an attempt without SO_REUSEADDR detects such a server, because vLLM sets it. That attempt also fails for 60 s after a server's
    end (TCP_TIMEWAIT_LEN in include/net/tcp.h) over closed connections, which the kernel lists. During that time a server that loads
    is not detected, and reports itself that the port is taken.
    """
    if _binds(host, port, reuse=False):
        return False
    if not _binds(host, port, reuse=True):
        return True
    return not any(c.laddr and c.laddr.port == port for c in psutil.net_connections("tcp"))


def find(host: str, count: int, start: int) -> list[int]:
    """Return ``count`` free ports of ``host``, from the ``start``-th of :data:`PORTS` on and around.

    A closed connection keeps each for 60 s, so that others who look get other ports.

    Raises:
        OSError: there are not that many.
    """
    found: list[int] = []
    for offset in range(len(PORTS)):
        port = PORTS[(start + offset) % len(PORTS)]
        if _take(host, port):
            found.append(port)
            if len(found) == count:
                return found
    raise OSError(f"fewer than {count} free ports in {PORTS.start}-{PORTS.stop - 1} on {host}")


def _binds(host: str, port: int, *, reuse: bool) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def _take(host: str, port: int) -> bool:
    """Return whether the port was free, and keep it for 60 s by a closed connection (TIME_WAIT) from all without SO_REUSEADDR.

    Servers set the option (vLLM, Ray, the router); this module does not when it looks. No process has to hold anything. The port is
    bound without the option, so that only one of two that look at the same time gets it, and then with it, so that servers can bind.
    """
    with socket.socket() as door:
        try:
            door.bind((host, port))
        except OSError:
            return False
        # If loopback is down, the port is free and not kept.
        with contextlib.suppress(OSError):
            door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            door.listen(1)
            door.settimeout(CALL_S)
            with socket.create_connection(door.getsockname(), timeout=CALL_S) as caller:
                accepted, _ = door.accept()
                accepted.close()
                # The side that closes first is in TIME_WAIT.
                caller.recv(1)
    return True
