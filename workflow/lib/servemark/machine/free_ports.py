"""Which ports of this machine are free, and keeping those that were found while their programs start."""

from __future__ import annotations

import contextlib
import socket

import psutil

# Ports below Linux's default ephemeral range (32768-60999) and above the well-known ones: nobody is given one by chance.
PORTS = range(20000, 32000)
CALL_S = 1.0


def is_taken(host: str, port: int) -> bool:
    """Return whether a program has bound this port, also one that does not listen yet, as vLLM's server while it loads.

    Two sockets may be bound to one port while neither listens if both ask for that (SO_REUSEADDR), as vLLM's does, so only an attempt
    without it sees a server that loads. That attempt also fails for 60 s after a server's end (TCP_TIMEWAIT_LEN in include/net/tcp.h),
    over connections that nobody has any more, which the kernel lists: so long a server that loads on that port is not seen, and says
    itself that the port is taken.
    """
    if _binds(host, port, reuse=False):
        return False
    if not _binds(host, port, reuse=True):
        return True
    return not any(c.laddr and c.laddr.port == port for c in psutil.net_connections("tcp"))


def find(host: str, count: int, start: int) -> list[int]:
    """Return ``count`` ports that nobody has on ``host``, looked for from the ``start``-th of :data:`PORTS` on and around.

    Each is kept for 60 s by a closed connection, so that whoever looks in that time is given others.

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
    """Return whether the port was free; it is then kept from all who do not ask for SO_REUSEADDR, by a closed connection (TIME_WAIT).

    Servers ask for it (vLLM, Ray, the router); this module, when it looks for ports, does not. No process has to hold anything. It is
    bound without the option, so that of two who look at the same time one is refused, and gets it then, so that servers are let in.
    """
    with socket.socket() as door:
        try:
            door.bind((host, port))
        except OSError:
            return False
        # Without a way to ourselves (loopback is down) the port is as free, and not kept.
        with contextlib.suppress(OSError):
            door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            door.listen(1)
            door.settimeout(CALL_S)
            with socket.create_connection(door.getsockname(), timeout=CALL_S) as caller:
                accepted, _ = door.accept()
                accepted.close()
                # The side that closes first is the one that waits.
                caller.recv(1)
    return True
