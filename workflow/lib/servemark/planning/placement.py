"""Which devices of which nodes each replica has."""

from __future__ import annotations

from servemark.records import Part, Replica, Topology


def place(topology: Topology) -> tuple[Replica, ...]:
    """Return replicas ``r0``, ``r1``, ... in order, with the index of each node (from 0) and of each device on it.

    Replicas that share a node have disjoint devices; a replica of several nodes has whole nodes in order. The client's own
    node, if there is one, comes after all of these.

    Raises:
        ValueError: replicas and nodes do not divide, or a replica's ranks over its nodes; the configuration refuses that.
    """
    per_node, left = divmod(topology.replicas, topology.nodes)
    if not left:
        size = topology.replica_size
        return tuple(
            Replica(name=f"r{index}", parts=(Part(node=index // per_node, devices=_devices(index % per_node, size)),))
            for index in range(topology.replicas)
        )
    nodes, left = divmod(topology.nodes, topology.replicas)
    if left or topology.replica_size % nodes:
        raise ValueError(f"{topology.replicas} replicas cannot be placed evenly on {topology.nodes} nodes")
    devices = _devices(0, topology.replica_size // nodes)
    return tuple(
        Replica(name=f"r{index}", parts=tuple(Part(node=index * nodes + part, devices=devices) for part in range(nodes)))
        for index in range(topology.replicas)
    )


def _devices(position: int, size: int) -> tuple[int, ...]:
    return tuple(range(position * size, (position + 1) * size))
