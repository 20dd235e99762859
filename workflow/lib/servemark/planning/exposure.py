"""Warnings about ports of a deployment that other users can reach. docs/security.md lists every port."""

from servemark.records import Topology

PAGE = "docs/security.md"


def notes(topology: Topology, *, exclusive: bool = True) -> tuple[str, ...]:
    """Return a warning for each part that the API key does not protect. ``exclusive``: the nodes run no other job."""
    found = []
    if (nodes := topology.nodes_of_a_replica) > 1:
        found.append(
            f"Ranks on {nodes} nodes exchange prompts and outputs over the network without authentication and encryption. Every user "
            "who reaches these nodes on that network can read them, and can write to the store through which the ranks connect. For "
            "confidential prompts use a private network and exclusive nodes, or keep each replica on one node."
        )
    elif topology.traits.open_store:
        found.append(
            f"With `executor: {topology.executor}`, the store through which ranks connect listens on every address of the node without "
            "authentication. Every user who reaches the node can write to it. On one node `executor: mp` opens no such port."
        )
    if not exclusive:
        found.append(
            "Other jobs may share the nodes (`exclusive: false`), and their users reach the ports on loopback. For confidential prompts "
            "set `exclusive: true` in the cluster file."
        )
    return tuple(found)
