"""Choose the interface of a node that a deployment uses."""

from __future__ import annotations

import fnmatch
import ipaddress
from collections.abc import Sequence

from servemark.errors import StageFailed
from servemark.records import Interface


def choose(node: str, interfaces: Sequence[Interface], wanted: str | None, known_as: str | None) -> Interface:
    """Return the interface that a deployment uses on one node.

    Args:
        wanted: a name, a pattern such as ``hsn*`` (the first by name), or a network such as ``10.0.0.0/8``; None for ``known_as``.
        known_as: the node's address in the scheduler.

    Raises:
        StageFailed: the node has no such interface.
    """
    ordered = sorted(interfaces, key=lambda interface: interface.name)
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
