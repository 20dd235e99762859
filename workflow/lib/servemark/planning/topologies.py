"""List the topologies of a model on nodes of one kind. Tensor parallel ranks never leave a node, and every node has the same ranks."""

from collections.abc import Iterator

from servemark.config.topology import AskedTopology
from servemark.planning.legality import legality
from servemark.weights.architecture import Architecture


def legal(architecture: Architecture, devices: int, nodes: int, *, spread: bool) -> Iterator[AskedTopology]:
    """Yield the topologies on exactly ``nodes`` nodes that vLLM accepts.

    On one node: 1 to as many replicas as it has devices for. On several nodes: each node full of replicas, or replicas of whole nodes with
    pipeline stages over the nodes. A mixture of experts also with data parallel engines in place of pipeline stages; over nodes only
    with ``spread``, because its experts are otherwise split over all nodes.

    Args:
        devices: devices of a node.
        spread: ranks have whole experts (enable-expert-parallel).
    """
    for tensor, stages, engines in _sizes(architecture, devices, spread=spread):
        room = devices // (tensor * stages * engines)
        for replicas in range(1, room + 1) if nodes == 1 else (nodes * room,):
            yield _topology(nodes, tensor, stages, engines, replicas)
        # A node with room for a second group of this size would be half empty.
        for span in range(2, nodes + 1) if room == 1 else ():
            if nodes % span == 0 and engines == 1 and stages * span <= architecture.layers:
                yield _topology(nodes, tensor, stages * span, 1, nodes // span)
            elif nodes % span == 0 and engines > 1 and spread:
                yield _topology(nodes, tensor, 1, engines * span, nodes // span)


def _topology(nodes: int, tensor: int, stages: int, engines: int, replicas: int) -> AskedTopology:
    return AskedTopology(nodes=nodes, tensor_parallel=tensor, pipeline_parallel=stages, data_parallel=engines, replicas=replicas)


def _sizes(architecture: Architecture, devices: int, *, spread: bool) -> Iterator[tuple[int, int, int]]:
    """Yield the ranks of a replica within a node: tensor parallel, pipeline parallel and data parallel sizes that vLLM accepts."""
    for tensor in range(1, devices + 1):
        most = devices // tensor
        inside = [(stages, 1) for stages in range(1, most + 1)]
        inside += [(1, engines) for engines in range(2, most + 1)] if architecture.moe else []
        for stages, engines in inside:
            topology = AskedTopology(tensor_parallel=tensor, pipeline_parallel=stages, data_parallel=engines).record()
            if not legality(architecture, topology, devices, spread=spread):
                yield tensor, stages, engines
