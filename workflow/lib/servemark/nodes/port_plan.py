"""Which of a node's free ports is whose: no two processes of a deployment are given the same one. Pure functions.

Ports are looked for on the node itself, before anything is started: from another node nobody can see what is free there.
"""

from __future__ import annotations

from servemark.records import Node, Topology

_RAY = 6
_SERVER = 2
_REPLICA = _RAY + _SERVER
# Once on a node, whatever runs there: the all-reduce, the router's counters, the router.
_SHARED = 3


def needed(topology: Topology) -> int:
    """How many free ports every node has to have."""
    return _REPLICA * _replicas_of_a_node(topology) + _SHARED


def of_ray(topology: Topology, node: Node, index: int) -> tuple[int, ...]:
    """The six ports that Ray gets on ``node`` for the replica of this number (from 0)."""
    return _of_replica(topology, node, index)[:_RAY]


def of_server(topology: Topology, node: Node, index: int) -> tuple[int, int]:
    """Where the replica's server listens if this node is its head, and where its processes on several nodes find each other."""
    own, between = _of_replica(topology, node, index)[_RAY:]
    return own, between


def of_fabric(node: Node) -> int:
    """Where the ranks of the all-reduce find each other."""
    return node.ports[-3]


def of_router(node: Node) -> tuple[int, int]:
    """Where the router listens, and where it shows its counters."""
    return node.ports[-1], node.ports[-2]


def _replicas_of_a_node(topology: Topology) -> int:
    return max(1, topology.replicas // topology.nodes)


def _of_replica(topology: Topology, node: Node, index: int) -> tuple[int, ...]:
    # Replicas that share a node follow each other in number.
    first = _REPLICA * (index % _replicas_of_a_node(topology))
    return node.ports[first : first + _REPLICA]
