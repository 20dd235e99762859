"""The interface of a node that a deployment uses, and free ports of this machine."""

import contextlib
import fnmatch
import ipaddress
import itertools
import socket
from collections.abc import Sequence

import psutil

from servemark.errors import StageFailed
from servemark.records import Interface

# Above the well-known ports and below Linux's default ephemeral range (32768-60999).
PORTS = range(20000, 32000)
CALL_S = 1.0


def choose_interface(node: str, interfaces: Sequence[Interface], wanted: str | None, known_as: str | None) -> Interface:
    """Return the interface that a deployment uses on one node.

    Args:
        wanted: a name, a pattern such as ``hsn*`` (the first by name), or a network such as ``10.0.0.0/8``; None for ``known_as``.
        known_as: the node's address in the scheduler.

    Raises:
        StageFailed: the node has no such interface.
    """
    ordered = sorted(interfaces, key=lambda i: i.name)
    if wanted is None:
        fitting = [i for i in ordered if i.address == known_as]
    elif "/" in wanted:
        network = ipaddress.ip_network(wanted, strict=False)
        fitting = [i for i in ordered if ipaddress.ip_address(i.address) in network]
    else:
        fitting = [i for i in ordered if fnmatch.fnmatchcase(i.name, wanted)]
    if fitting:
        return fitting[0]
    found = ", ".join(f"{i.name} ({i.address})" for i in ordered) or "none"
    expected = f"an interface {wanted}" if wanted else f"an interface with the address {known_as}, the node's address in Slurm"
    raise StageFailed(
        f"Node {node}: expected {expected}, with an IPv4 address; found {found}.",
        do="Set `interface` in the cluster file (config/clusters/) to a name, a pattern such as hsn*, or a network such as 10.0.0.0/8. "
        "`ip -br addr` on the node lists them.",
        reason="wrong_interface",
    )


def is_taken(host: str, port: int) -> bool:
    """Return whether a program has bound this port, even if it does not listen yet, as vLLM's server while it loads.

    vLLM sets SO_REUSEADDR, so only a bind without it fails on a loading server. Such a bind also fails for 60 s after a server's end
    (TCP_TIMEWAIT_LEN in include/net/tcp.h), while the kernel lists closed connections. A server that loads within these 60 s is not
    detected.
    """
    if _binds(host, port, reuse=False):
        return False
    if not _binds(host, port, reuse=True):
        return True
    return not any(c.laddr and c.laddr.port == port for c in psutil.net_connections("tcp"))


def find_ports(host: str, count: int, start: int) -> list[int]:
    """Return ``count`` free ports of ``host``; search :data:`PORTS` once around from index ``start`` and reserve each port for 60 s.

    Raises:
        OSError: fewer ports are free.
    """
    candidates = (PORTS[(start + offset) % len(PORTS)] for offset in range(len(PORTS)))
    found = list(itertools.islice((port for port in candidates if _reserve(host, port)), count))
    if len(found) < count:
        raise OSError(f"fewer than {count} free ports in {PORTS.start}-{PORTS.stop - 1} on {host}")
    return found


def _binds(host: str, port: int, *, reuse: bool) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def _reserve(host: str, port: int) -> bool:
    """Return whether the port was free; reserve it for 60 s by a closed connection (TIME_WAIT).

    Servers (vLLM, Ray, the router) set SO_REUSEADDR and can bind the port; this module binds without it and finds the port taken. So two
    searches at the same time get different ports, and no process has to keep a socket.
    """
    with socket.socket() as listener:
        try:
            listener.bind((host, port))
        except OSError:
            return False
        # If loopback is down, the port is free and not reserved.
        with contextlib.suppress(OSError):
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.listen(1)
            listener.settimeout(CALL_S)
            with socket.create_connection(listener.getsockname(), timeout=CALL_S) as caller:
                accepted, _ = listener.accept()
                accepted.close()
                # The side that closes first enters TIME_WAIT.
                caller.recv(1)
    return True
