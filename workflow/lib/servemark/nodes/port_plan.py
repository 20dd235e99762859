"""Assignment of a node's free ports to the processes of a deployment. Pure functions.

Each node finds its free ports itself before anything starts, because they are not visible from another node.
"""

from servemark.records import Node, Topology

# Each node has one port for each of: the all-reduce, the router's counters, the router.
_SHARED = 3


def needed(topology: Topology) -> int:
    """Return the number of free ports that each node needs."""
    return (1 + topology.traits.ports) * _replicas_of_a_node(topology) + _SHARED


def of_server(topology: Topology, node: Node, index: int) -> int:
    """Return the server's port of replica ``index`` (from 0), whose head is ``node``."""
    return _of_replica(topology, node, index)[0]


def of_executor(topology: Topology, node: Node, index: int) -> tuple[int, ...]:
    """Return the executor's ports on ``node`` for replica ``index`` (from 0); the executor's traits give their number."""
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
    # One for the server, then the executor's. Replicas that share a node have consecutive numbers.
    count = 1 + topology.traits.ports
    first = count * (index % _replicas_of_a_node(topology))
    return node.ports[first : first + count]
