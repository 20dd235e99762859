"""Which of a node's free ports belongs to which process of a deployment. Pure functions.

The node itself finds free ports before anything is started: from another node nobody can see what is free there.
"""

from __future__ import annotations

from servemark.records import Node, Topology

# Once on a node, whatever runs there: the all-reduce, the router's counters, the router.
_SHARED = 3


def needed(topology: Topology) -> int:
    """Return how many free ports every node has to have."""
    return (1 + topology.traits.ports) * _replicas_of_a_node(topology) + _SHARED


def of_server(topology: Topology, node: Node, index: int) -> int:
    """Return the port of the server of the replica of this number (from 0) if this node is its head."""
    return _of_replica(topology, node, index)[0]


def of_executor(topology: Topology, node: Node, index: int) -> tuple[int, ...]:
    """Return the ports that the executor gets on ``node`` for the replica of this number (from 0): as many as its traits name."""
    return _of_replica(topology, node, index)[1:]


def of_fabric(node: Node) -> int:
    """Return the port at which the ranks of the all-reduce find each other."""
    return node.ports[-3]


def of_router(node: Node) -> tuple[int, int]:
    """Return the ports of the router and of its counters."""
    return node.ports[-1], node.ports[-2]


def _replicas_of_a_node(topology: Topology) -> int:
    return max(1, topology.replicas // topology.nodes)


def _of_replica(topology: Topology, node: Node, index: int) -> tuple[int, ...]:
    # One for the server, then the executor's. Replicas that share a node follow each other in number.
    count = 1 + topology.traits.ports
    first = count * (index % _replicas_of_a_node(topology))
    return node.ports[first : first + count]
