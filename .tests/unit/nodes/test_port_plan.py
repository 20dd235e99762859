"""Two processes of a deployment never get the same port of a node."""

from __future__ import annotations

from collections import Counter

import pytest

from servemark.nodes import port_plan
from servemark.planning.placement import place
from servemark.records import Node, Topology


def node(topology: Topology, number: int = 0) -> Node:
    free = tuple(range(20000 + 1000 * number, 20000 + 1000 * number + port_plan.needed(topology)))
    return Node(
        name=f"node{number}",
        host=f"node{number}",
        address=f"10.0.0.{number}",
        interface="hsn0",
        devices=topology.devices_per_node,
        cpu_count=8,
        memory_gib=1,
        shm_gib=1,
        python="3.12.1",
        vllm="1",
        ports=free,
    )


@pytest.mark.parametrize(
    ("topology", "asked"),
    [
        (Topology(), 4),
        (Topology(nodes=2, devices_per_node=4, tensor_parallel=4, pipeline_parallel=2, executor="ray"), 10),
        (Topology(devices_per_node=4, tensor_parallel=2, replicas=2, executor="ray"), 17),
        (Topology(devices_per_node=8, tensor_parallel=2, replicas=4, executor="ray"), 31),
        (Topology(devices_per_node=16, replicas=16), 19),
        (Topology(nodes=2, devices_per_node=4, tensor_parallel=4, replicas=2, executor="mp"), 5),
        (Topology(nodes=4, devices_per_node=2, tensor_parallel=2, pipeline_parallel=2, replicas=2, executor="ray"), 10),
        (Topology(nodes=2, devices_per_node=4, tensor_parallel=2, replicas=4, executor="mp", client="own"), 7),
    ],
)
def test_every_process_has_its_own_ports(topology, asked):
    nodes = [node(topology, number) for number in range(topology.nodes)]
    assert port_plan.needed(topology) == asked
    given = [*port_plan.of_router(nodes[0]), port_plan.of_fabric(nodes[0])]
    for index, replica in enumerate(place(topology)):
        given.append(port_plan.of_server(topology, nodes[replica.parts[0].node], index))
        for part in replica.parts:
            own = port_plan.of_executor(topology, nodes[part.node], index)
            assert len(own) == topology.traits.ports
            given += own
    assert {port: count for port, count in Counter(given).items() if count > 1} == {}
    assert set(given) <= {port for each in nodes for port in each.ports}
