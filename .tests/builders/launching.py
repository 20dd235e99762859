"""A plan and a node, for command lines."""

from __future__ import annotations

from servemark.records import Node, Plan, Topology


def plan(**changes) -> Plan:
    values = {
        "deployment": "plain",
        "model": "tiny",
        "environment": "cpu",
        "model_digest": "m",
        "environment_digest": "e",
        "served_name": "tiny",
        "topology": Topology(),
        "options": {"max-model-len": 512, "enforce-eager": True},
        "variables": {},
        "points": (),
        "key_parts": {},
    }
    return Plan(**(values | changes))


NODE = Node(name="node1", host="n1", address="10.0.0.1", interface="hsn0", devices=2, cpu_count=8, memory_gib=1, shm_gib=1,
            python="3.12.1", vllm="1", ports=tuple(range(20000, 20019)))  # fmt: skip
