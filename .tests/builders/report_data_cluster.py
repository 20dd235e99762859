"""Builders of report data: a plausible run on the nodes of a cluster under Slurm."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from builders import report_data_parts as parts
from builders.paths import FIXTURES
from builders.report_data import SHAPES, demo, hardware, manifest, measurement, plan, startup
from servemark import records
from servemark.report.gather import RunRecords

GPT_OSS = FIXTURES / "planning" / "gpt-oss-120b-config.json"

GPU_NODES = tuple(
    records.Node(
        name=f"node{number}",
        host=f"node{number}",
        address=f"10.20.0.{number}",
        interface="hsn0",
        devices=4,
        cpu_count=72,
        memory_gib=857.3,
        shm_gib=428.6,
        python="3.12.3",
        vllm="0.25.1",
        ray="2.56.1",
    )
    for number in (1, 2)
)
CLIENT_NODE = records.Node(
    name="client1",
    host="client1",
    address="10.20.0.99",
    interface="hsn0",
    devices=0,
    cpu_count=64,
    memory_gib=251.6,
    shm_gib=125.8,
    python="3.12.3",
    vllm="0.25.1",
)


def spanning_startup(deployment: str) -> records.Startup:
    """One server over two nodes, by Ray; the client on a third."""
    parts = tuple(records.Part(node=index, devices=(0, 1, 2, 3)) for index in (0, 1))
    return startup(
        deployment,
        cluster_seconds=21.4,
        seconds_to_health=203.0,
        seconds_to_first_token=206.1,
        nodes=(*GPU_NODES, CLIENT_NODE),
        placement=(records.Replica(name="r0", parts=parts, ray_address="10.20.0.1:6379"),),
        ray_nodes=tuple(
            records.RayNode(host=node.host, address=node.address, devices=4, ray="2.56.1", python="3.12.3") for node in GPU_NODES
        ),
        servers=(records.ServerPlace(replica="r0", daemon="server", node="node1", url="http://10.20.0.1:8000"),),
        client_node="client1",
    )


def replicated_startup(deployment: str) -> records.Startup:
    """Four servers of two devices each behind a router; the client on a third node."""
    places = [(0, (0, 1)), (0, (2, 3)), (1, (0, 1)), (1, (2, 3))]
    phases = (("imports and configuration", 29.0), ("load weights", 18.2), ("graph capture", 15.1))
    return startup(
        deployment,
        cluster_seconds=6.2,
        seconds_to_health=85.2,
        seconds_to_first_token=88.0,
        nodes=(*GPU_NODES, CLIENT_NODE),
        placement=tuple(
            records.Replica(name=f"r{number}", parts=(records.Part(node=node, devices=devices),))
            for number, (node, devices) in enumerate(places)
        ),
        servers=tuple(
            records.ServerPlace(
                replica=f"r{number}",
                daemon=f"server-r{number}",
                node=GPU_NODES[node].name,
                url=f"http://{GPU_NODES[node].address}:{8000 + number}",
            )
            for number, (node, _) in enumerate(places)
        ),
        router=records.ServerPlace(replica="", daemon="router", node="node1", url="http://10.20.0.1:8100"),
        client_node="client1",
        replicas=tuple(
            records.ReplicaStartup(
                replica=f"r{number}",
                node=GPU_NODES[node].name,
                seconds_to_first_token=82.0 + 2 * number,
                phases=tuple(records.StartupPhase(name=name, seconds=value + number / 2) for name, value in phases),
                log=f"results/two-nodes/deployments/{deployment}/attempts/001/server-r{number}.log",
            )
            for number, (node, _) in enumerate(places)
        ),
    )


def job(deployment: str, number: str, attempt: int = 1, **changes: Any) -> records.JobAccount:
    """A job on both GPU nodes and the client's."""
    values: dict[str, Any] = {
        "job_id": number,
        "source": "sacct",
        "state": "COMPLETED",
        "exit_code": "0:0",
        "partition": "workq",
        "account": "proj042",
        "qos": "normal",
        "nodes": ("client1", "node1", "node2"),
        "gpus": 8,
        "cpus": 208,
        "submitted_at": "2026-03-04T09:48:02+00:00",
        "started_at": "2026-03-04T10:09:40+00:00",
        "ended_at": "2026-03-04T10:33:25+00:00",
        "queue_wait_s": 1298.0,
        "elapsed_s": 1425.0,
        "limit_s": 3600.0,
        "attempts": (f"results/two-nodes/deployments/{deployment}/attempts/{attempt:03d}",),
    }
    return records.JobAccount(**(values | changes))


def accounting(deployment: str, *jobs: records.JobAccount, used: float, **changes: Any) -> records.Accounting:
    hours = sum((item.elapsed_s or 0) * (item.gpus or 0) / 3600 for item in jobs)
    values: dict[str, Any] = {
        "deployment": deployment,
        "scheduler": "slurm",
        "source": "sacct",
        "jobs": jobs,
        "gpu_hours_allocated": round(hours, 6),
        "gpu_hours_used": used,
    }
    return records.Accounting(**(values | changes))


def two_nodes() -> RunRecords:
    """Two H200 nodes under Slurm: one server over both, four replicas behind a router, and one GPU for comparison."""
    figures = {
        "tp4-pp2-ray": ((64, 5210.0), (256, 13_910.0), (512, 20_989.0)),
        "tp2-x4": ((64, 11_400.0), (256, 31_620.0), (512, 47_350.0)),
        "plain": ((64, 3580.0), (256, 7900.0), (512, 9080.0)),
    }
    points = []
    for name, loads in figures.items():
        for concurrency, output in loads:
            for repetition in (1, 2):
                item = measurement(name, concurrency, repetition, output * (1 + repetition / 100), 90 + concurrency * 2, 12.0)
                run = 2 if name == "tp4-pp2-ray" else 1
                update: dict[str, Any] = {
                    "attempt": f"results/two-nodes/deployments/{name}/attempts/{run:03d}",
                    "client_node": "node1" if name == "plain" else "client1",
                    "replica_requests": {"r0": 36},
                }
                if name == "tp2-x4":
                    update["replica_requests"] = {"r0": 9 + repetition, "r1": 9, "r2": 9, "r3": 9 - repetition}
                points.append(item.model_copy(update=update))
    base = demo()
    gpus = tuple(records.Gpu(name="NVIDIA H200", memory_mib=143_771) for _ in range(4))
    one = startup(
        "plain",
        cluster_seconds=2.1,
        nodes=(GPU_NODES[0],),
        placement=(records.Replica(name="r0", parts=(records.Part(node=0, devices=(0,)),)),),
        client_node="node1",
    )
    names = tuple(figures)
    return replace(
        base,
        run="two-nodes",
        config={**base.config, "run": "two-nodes", "deployments": {name: {"model": "tiny"} for name in names}},
        hardware=hardware(accelerator="cuda", gpus=gpus, driver="580.159.04", cuda="13.0", cpu_count=72, memory_gib=857.3),
        plans={
            name: plan(
                name,
                tuple(item for item in points if item.deployment == name),
                topology=SHAPES.get(name, records.Topology()),
                variables={},
            )
            for name in names
        },
        startups={
            "tp4-pp2-ray": spanning_startup("tp4-pp2-ray"),
            "tp2-x4": replicated_startup("tp2-x4"),
            "plain": one,
        },
        stopped={name: records.Stopped(deployment=name, seconds=4.2) for name in names},
        measurements=points,
        # The shape of a large model, from which the roofline can be computed.
        manifests={"tiny": manifest().model_copy(update={"config": json.loads(GPT_OSS.read_text())})},
        attempts=[
            parts.attempt(
                "tp4-pp2-ray",
                outcome="interrupted",
                how="the run ended while it lived: interrupted, killed or lost",
                nodes=("client1", "node1", "node2"),
            ),
            *(parts.attempt(name, 2 if name == "tp4-pp2-ray" else 1, nodes=("client1", "node1", "node2")) for name in names),
        ],
        distributions=parts.distributions(points),
        timelines={
            key: found
            for name in names
            for key, found in parts.timelines([item for item in points if item.deployment == name], 4 if name == "tp2-x4" else 1).items()
        },
        fabrics={
            "tp4-pp2-ray": records.Fabric(
                deployment="tp4-pp2-ray",
                needed=True,
                backend="nccl",
                ranks=8,
                transport=("Using network AWS Libfabric", "via P2P/CUMEM", "via NET/AWS Libfabric/0/GDRDMA"),
                interfaces=("node1: hsn0 (10.20.0.1)", "node2: hsn0 (10.20.0.2)"),
                bytes=256 * 2**20,
                seconds=0.0203,
                bus_gib_per_s=21.552,
            ),
            "tp2-x4": records.Fabric(
                deployment="tp2-x4",
                needed=True,
                backend="nccl",
                ranks=8,
                transport=("Using network Socket", "via NET/Socket/0"),
                interfaces=("node1: hsn0 (10.20.0.1)", "node2: hsn0 (10.20.0.2)"),
                bytes=256 * 2**20,
                seconds=0.31,
                bus_gib_per_s=1.411,
            ),
            "plain": records.Fabric(deployment="plain"),
        },
        accounts={
            "tp4-pp2-ray": accounting(
                "tp4-pp2-ray",
                job("tp4-pp2-ray", "48211", state="NODE_FAIL", exit_code="1:0", elapsed_s=411.0),
                job("tp4-pp2-ray", "48211", 2, restarts=1, queue_wait_s=122.0),
                used=2.41,
            ),
            "tp2-x4": accounting("tp2-x4", job("tp2-x4", "48212"), used=2.9),
            "plain": accounting(
                "plain",
                job(
                    "plain",
                    "48213",
                    source="journal",
                    gpus=None,
                    partition=None,
                    account=None,
                    qos=None,
                    nodes=("node1",),
                ),
                used=0.35,
                source="journal",
                gpu_hours_allocated=None,
                trouble="sacct: Unable to contact slurm controller (connect failure)",
            ),
        },
    )
