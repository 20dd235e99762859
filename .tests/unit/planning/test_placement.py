"""Nodes and devices of each replica, as a table."""

from __future__ import annotations

import pytest

from servemark.config.topology import AskedTopology
from servemark.planning.placement import place
from servemark.records import Topology

ALL4 = (0, 1, 2, 3)


@pytest.mark.parametrize(
    ("topology", "parts"),
    [
        ({}, [[(0, (0,))]]),
        ({"tensor_parallel": 4}, [[(0, ALL4)]]),
        ({"replicas": 4}, [[(0, (0,))], [(0, (1,))], [(0, (2,))], [(0, (3,))]]),
        ({"replicas": 2, "tensor_parallel": 2}, [[(0, (0, 1))], [(0, (2, 3))]]),
        ({"nodes": 2, "tensor_parallel": 2}, [[(0, (0,)), (1, (0,))]]),
        ({"nodes": 2, "tensor_parallel": 4, "pipeline_parallel": 2}, [[(0, ALL4), (1, ALL4)]]),
        ({"nodes": 2, "replicas": 4}, [[(0, (0,))], [(0, (1,))], [(1, (0,))], [(1, (1,))]]),
        ({"nodes": 2, "replicas": 2, "tensor_parallel": 2}, [[(0, (0, 1))], [(1, (0, 1))]]),
        (
            {"nodes": 4, "replicas": 2, "tensor_parallel": 4, "pipeline_parallel": 2},
            [[(0, ALL4), (1, ALL4)], [(2, ALL4), (3, ALL4)]],
        ),
        ({"data_parallel": 2, "tensor_parallel": 2}, [[(0, ALL4)]]),
        ({"data_parallel": 2, "replicas": 2}, [[(0, (0, 1))], [(0, (2, 3))]]),
        ({"nodes": 2, "data_parallel": 4}, [[(0, (0, 1)), (1, (0, 1))]]),
        ({"nodes": 2, "data_parallel": 1, "tensor_parallel": 6, "executor": "ray"}, [[(0, (0, 1, 2)), (1, (0, 1, 2))]]),
        ({"replicas": 2, "client": "own"}, [[(0, (0,))], [(0, (1,))]]),
    ],
    ids=str,
)
def test_replicas_have_devices(topology, parts):
    record = AskedTopology(**topology).record()
    found = place(record)
    assert [replica.name for replica in found] == [f"r{index}" for index in range(len(parts))]
    assert [[(part.node, part.devices) for part in replica.parts] for replica in found] == parts


@pytest.mark.parametrize("nodes", range(1, 7))
@pytest.mark.parametrize("replicas", range(1, 7))
@pytest.mark.parametrize("ranks", [1, 2, 6])
def test_each_device_has_one_rank_or_the_topology_is_refused(nodes, replicas, ranks):
    try:
        record = AskedTopology(nodes=nodes, replicas=replicas, tensor_parallel=ranks).record()
    except ValueError:
        with pytest.raises(ValueError, match=rf"{replicas} .* {nodes} "):
            place(Topology(nodes=nodes, replicas=replicas, tensor_parallel=ranks, executor="mp"))
        return
    taken = [(part.node, device) for replica in place(record) for part in replica.parts for device in part.devices]
    assert sorted(taken) == [(node, device) for node in range(nodes) for device in range(record.devices_per_node)]
