"""What is asked of the scheduler: pure functions of a topology and a cluster."""

from __future__ import annotations

import shlex
from dataclasses import replace

from servemark.config.cluster import Cluster
from servemark.config.topology import Topology as AskedTopology
from servemark.records import Topology
from servemark.slurm.request import Request


def request(
    name: str,
    topology: Topology | AskedTopology,
    cluster: Cluster,
    points_lacking: int,
    limit_min: float | None = None,
) -> Request:
    """The allocation of one deployment.

    Time: ``minutes_to_start`` + ``points_lacking`` x ``minutes_per_point``, at most ``max_minutes`` or, without that, ``limit_min``. A
    job that ends before its points loses none: the next run goes on.

    Where the client has a node of its own of another kind, that node is a second component of a heterogeneous job: asked for in one
    component, GPUs have to be on every node (Slurm 22.05 refuses even ``--gpus``, which counts over the job), and which node has which
    role would have to be guessed. Further options of sbatch are the servers'.
    """
    minutes = cluster.minutes_to_start + points_lacking * cluster.minutes_per_point
    kind = f"{cluster.gpu_type}:" if cluster.gpu_type else ""
    reservation = [f"--reservation={cluster.reservation}"] if cluster.reservation else []
    client = None
    if topology.client == "own" and cluster.other_clients:
        asked = {"partition": cluster.client_partition, "constraint": cluster.client_constraint}
        client = shlex.join([*(f"--{key}={value}" for key, value in asked.items() if value), *reservation])
    return Request(
        name=name,
        nodes=topology.nodes if client else topology.all_nodes,
        gres=f"gpu:{kind}{cluster.gpus_per_node}" if cluster.gpus_per_node else None,
        cpus=cluster.cpus_per_node,
        memory_mb=cluster.memory * 1024 if cluster.memory else None,
        minutes=int(min(minutes, cluster.max_minutes or limit_min or minutes)),
        account=cluster.account,
        partition=cluster.partition,
        qos=cluster.qos,
        constraint=cluster.constraint,
        exclusive=cluster.exclusive,
        extra=shlex.join([*reservation, *cluster.extra]),
        client=client,
    )


def small_job(name: str, cluster: Cluster, limit_min: float | None = None) -> Request:
    """The job that looks at a node or an environment: one whole node of the deployments' kind, for a short time.

    It asks for as much of the node as a deployment does, because what it finds there is what deployments are planned for.
    """
    small = cluster.small_jobs
    asked = request(name, AskedTopology(), cluster, 0)
    return replace(
        asked,
        minutes=int(min(small.minutes, cluster.max_minutes or limit_min or small.minutes)),
        account=small.account or asked.account,
        partition=small.partition or asked.partition,
        qos=small.qos or asked.qos,
    )
