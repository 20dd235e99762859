"""Which devices of which nodes each replica has."""

from __future__ import annotations

from servemark.records import Part, Replica, Topology


def place(topology: Topology) -> tuple[Replica, ...]:
    """Return replicas ``r0``, ``r1``, ... in order, with the index of each node (from 0) and of each device on it.

    Replicas that share a node have disjoint devices; a replica of several nodes has whole nodes in order. The client's own node comes last.
    ValueError: replicas and nodes do not divide, or a replica's ranks over its nodes; the configuration refuses that.
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
