"""The transport between nodes, as NCCL's log names it: its kind, and whether the cluster file allows it or the nodes have a faster one."""

import re
from collections.abc import Iterable, Sequence
from typing import Literal

from servemark.errors import StageFailed
from servemark.records import FastAdapter, Node, Topology

Kind = Literal["ib", "efa", "cxi", "tcp"]

# NCCL_DEBUG=INFO: "NET/IB : Using [0]mlx5_0...", "Using network AWS Libfabric", "NET/OFI Selected provider is cxi (found 4 nics)",
# "Channel 00/0 : 3[3] -> 4[0] [send] via NET/Socket/0", "[send] via NET/AWS Libfabric/1/GDRDMA".
_NCCL = re.compile(
    r"NCCL INFO .*?(NET/(?!Plugin|OFI)\w+ : Using .*|NET/OFI Selected \w+ is .*|Using network .+"
    r"|via (?:NET/AWS Libfabric[\w/]*|(?:NET|P2P|SHM)/[\w/]+))"
)
# One line of TCP decides: a single slow connection slows down every all-reduce. NCCL's own names come from src/transport/net_ib and
# net_socket, providers of aws-ofi-nccl from libfabric (fi_provider(7)). "IBext" is NVIDIA's plugin for InfiniBand.
_KINDS: tuple[tuple[str, Kind], ...] = (
    (r"NET/Socket|Using network Socket|Selected \w+ is \S*(tcp|sockets|udp)", "tcp"),
    (r"Selected \w+ is \S*cxi", "cxi"),
    (r"Selected \w+ is \S*efa", "efa"),
    (r"NET/IB|Using network IB|Selected \w+ is \S*verbs", "ib"),
)
NAMES = {"ib": "InfiniBand or RoCE", "efa": "EFA", "cxi": "Slingshot", "tcp": "TCP", None: "a transport that servemark does not know"}
PAGES = "See docs/how-to/infiniband.md and docs/how-to/slingshot.md."


def named(log: str) -> tuple[str, ...]:
    """Return the transports that NCCL prints, each once, in the order they appear."""
    return tuple(dict.fromkeys(found[1].strip()[:120] for found in _NCCL.finditer(log)))


def kind_of(lines: Iterable[str]) -> Kind | None:
    """Return the kind of transport in the output of :func:`named`; None if no line names one."""
    text = "\n".join(lines)
    return next((kind for pattern, kind in _KINDS if re.search(pattern, text)), None)


def require(wanted: str, kind: Kind | None, lines: Sequence[str], adapters: Sequence[str], log: str) -> None:
    """Check ``require_transport`` of the cluster file.

    Args:
        wanted: a kind, or ``any``.
        kind: the transport in use.
        lines: what the library printed about it.
        adapters: the nodes' fast adapters, from :func:`listed`.
        log: path of the log.

    Raises:
        StageFailed: the ranks use another transport, or the log names none.
    """
    if wanted in ("any", kind):
        return
    have = f"The nodes have {', '.join(adapters)}." if adapters else "Linux lists no InfiniBand, EFA or Slingshot adapter on the nodes."
    raise StageFailed(
        f"The cluster file requires the transport {NAMES[wanted]} (`require_transport: {wanted}`); the ranks use {NAMES[kind]}. {have}",
        look=log,
        do="Add the module with NCCL's network plugin to `modules` of the cluster file, and set the site's NCCL_* and FI_* under "
        f"`variables`. {PAGES} To start without this transport, set `require_transport: any`.",
        reason="wrong_transport",
        quote=tuple(lines),
    )


def unmet(wanted: str, kind: Kind | None, topology: Topology) -> str | None:
    """Return why a measurement from the ledger does not meet ``require_transport`` of the cluster file; None if it does.

    Args:
        wanted: a kind, or ``any``.
        kind: the transport in the record; None: none recorded.
        topology: as in :func:`slow`, replicas that each fit on one node depend on no transport.
    """
    if wanted in ("any", kind) or topology.nodes_of_a_replica == 1:
        return None
    had = f"the ranks used {NAMES[kind]}" if kind else "the record names no transport"
    return (
        f"The cluster file requires {NAMES[wanted]} (`require_transport: {wanted}`), but this result comes from the ledger, and {had}. "
        "To measure the point again, run `servemark remeasure RUN DEPLOYMENT/POINT`, then rerun the command of the run."
    )


def slow(kind: Kind | None, nodes: Iterable[Node], topology: Topology) -> str | None:
    """Return why the transport is slower than the nodes allow: TCP, although they have fast adapters. None if it is not.

    Replicas that each fit on one node send nothing between the nodes, so no result depends on the transport.
    """
    if kind != "tcp" or topology.nodes_of_a_replica == 1 or not (have := listed(nodes)):
        return None
    return f"NCCL uses TCP (NET/Socket) between the nodes, which have faster adapters: {', '.join(have)}."


def listed(nodes: Iterable[Node]) -> list[str]:
    """Return the fast adapters of the nodes in words, each once."""
    return list(dict.fromkeys(_words(adapter) for node in nodes for adapter in node.adapters))


def _words(adapter: FastAdapter) -> str:
    speed = f", {adapter.gbit:g} Gbit/s" if adapter.gbit else ""
    return f"{adapter.name} ({NAMES[adapter.kind]}{speed})"
