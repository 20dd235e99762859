"""Which ports of this machine are free, and keeping those that were found until their program binds them."""

from __future__ import annotations

import socket

import psutil

# Ports below Linux's default ephemeral range (32768-60999) and above the well-known ones: nobody is given one by chance.
PORTS = range(20000, 32000)


def is_taken(host: str, port: int) -> bool:
    """Whether a program has bound this port, also one that does not listen yet, as vLLM's server while it loads.

    Two sockets may be bound to one port while neither listens if both ask for that (SO_REUSEADDR), as vLLM's does, so only an attempt
    without it sees a server that loads. That attempt also fails for a minute after a server's end, over connections that nobody has any
    more: those the kernel lists.
    """
    if _binds(host, port, reuse=False):
        return False
    if not _binds(host, port, reuse=True):
        return True
    return not any(c.laddr and c.laddr.port == port for c in psutil.net_connections("tcp"))


def find(host: str, count: int, start: int) -> list[int]:
    """``count`` ports that nobody has on ``host``, looked for from the ``start``-th of :data:`PORTS` on and around.

    Each is kept (:func:`_keep`), so that whoever looks in the next minute is given others.

    Raises:
        OSError: there are not that many.
    """
    found: list[int] = []
    for offset in range(len(PORTS)):
        port = PORTS[(start + offset) % len(PORTS)]
        if _binds(host, port, reuse=False) and _keep(host, port):
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


def _keep(host: str, port: int) -> bool:
    """Leave a closed connection on the port, which keeps it for 60 s (TIME_WAIT) from all who do not ask for SO_REUSEADDR.

    Servers ask for it (vLLM, Ray, the router); this module, when it looks for ports, does not. No process has to hold anything.

    Returns:
        False: somebody was quicker.
    """
    with socket.socket() as door:
        door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            door.bind((host, port))
            door.listen(1)
            with socket.create_connection(door.getsockname()) as caller:
                accepted, _ = door.accept()
                accepted.close()
                # The side that closes first is the one that waits.
                caller.recv(1)
        except OSError:
            return False
    return True
