"""Place replicas on nodes and devices."""

from servemark.records import Part, Replica, Topology


def place(topology: Topology) -> tuple[Replica, ...]:
    """Return the replicas ``r0``, ``r1``, ... with the indices (from 0) of their nodes and of their devices on each.

    Replicas on one node have different devices; a replica of several nodes has whole nodes in order. The client's own node comes last.
    ValueError: replicas or ranks do not divide over the nodes, which the configuration refuses before.
    """
    nodes, sharing = topology.nodes_of_a_replica, max(1, topology.replicas // topology.nodes)
    if nodes * topology.replicas != topology.nodes * sharing or topology.replica_size % nodes:
        raise ValueError(f"{topology.replicas} replicas cannot be placed evenly on {topology.nodes} nodes")
    size = topology.replica_size // nodes
    replicas = []
    for index in range(topology.replicas):
        first, position = index * nodes // sharing, index % sharing * size
        parts = [Part(node=first + part, devices=tuple(range(position, position + size))) for part in range(nodes)]
        replicas.append(Replica(name=f"r{index}", parts=tuple(parts)))
    return tuple(replicas)
