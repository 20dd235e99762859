"""A plan, a node and an executor, for command lines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from builders.deployed import stage_context
from servemark.deployment import executors
from servemark.deployment.executors import Executor
from servemark.deployment.launcher import Launcher
from servemark.nodes.allocation import Allocation
from servemark.progress import Progress
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


def executor(folder: Path, told: Progress, asked: Plan, **changes: Any) -> Executor:
    """Return the executor of a plan on one node, with changes to the context of its stage."""
    launcher = Launcher(Allocation(None, ("here",)), folder / "attempts" / "001", Path("/tmp/scratch"))
    return executors.of(stage_context(folder, told, asked, **changes), launcher, (NODE,))
