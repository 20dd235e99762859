"""What is asked of the scheduler: pure functions of a topology and a cluster."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from servemark.config.cluster import Cluster
from servemark.config.topology import Topology as AskedTopology
from servemark.records import Topology


@dataclass(frozen=True)
class AllocationRequest:
    """One job in Slurm's terms; None: do not ask, Slurm's own default holds.

    Attributes:
        nodes: all nodes, the client's own included; one task runs on each.
        gres: ``gpu:N`` or ``gpu:TYPE:N``, asked on every node.
        gpus: ``N`` or ``TYPE:N`` of the whole job, instead of ``gres`` when the client's own node needs none
            (``sbatch --gpus``). Never both.
        cpus: CPUs of the one task on each node; None with ``exclusive``: all of it.
        memory_mb: MiB on each node; None with ``exclusive``: all of it.
        minutes: wall time.
        extra: further options of sbatch, one word each.
    """

    name: str
    nodes: int
    gres: str | None
    gpus: str | None
    cpus: int | None
    memory_mb: int | None
    minutes: int
    account: str | None
    partition: str | None
    qos: str | None
    constraint: str | None
    reservation: str | None
    exclusive: bool
    extra: tuple[str, ...]


def request(name: str, topology: Topology | AskedTopology, cluster: Cluster, points_lacking: int) -> AllocationRequest:
    """The allocation of one deployment.

    Time: ``minutes_to_start`` + ``points_lacking`` x ``minutes_per_point``, at most ``max_minutes``. A job that ends before
    its points loses none: the next run goes on.

    Where the client has a node of its own with other features, nodes are counted by feature,
    ``[servers*N&client*1]`` (sbatch(1), --constraint, "Multiple Counts"), and GPUs are asked for the whole job: asked by the
    node, a client's node without GPU would never fit.
    """
    minutes = cluster.minutes_to_start + points_lacking * cluster.minutes_per_point
    kind = f"{cluster.gpu_type}:" if cluster.gpu_type else ""
    other_client = topology.client == "own" and cluster.client_constraint is not None
    by_node = cluster.gpus_per_node > 0 and not other_client
    by_job = cluster.gpus_per_node > 0 and other_client
    constraint = cluster.constraint
    if other_client:
        constraint = f"[{_group(cluster.constraint)}*{topology.nodes}&{_group(cluster.client_constraint)}*1]"
    return AllocationRequest(
        name=name,
        nodes=topology.all_nodes,
        gres=f"gpu:{kind}{cluster.gpus_per_node}" if by_node else None,
        gpus=f"{kind}{cluster.gpus_per_node * topology.nodes}" if by_job else None,
        cpus=cluster.cpus_per_node,
        memory_mb=cluster.memory * 1024 if cluster.memory else None,
        minutes=min(minutes, cluster.max_minutes or minutes),
        account=cluster.account,
        partition=cluster.partition,
        qos=cluster.qos,
        constraint=constraint,
        reservation=cluster.reservation,
        exclusive=cluster.exclusive,
        extra=cluster.extra,
    )


def small_job(name: str, cluster: Cluster) -> AllocationRequest:
    """The job that looks at a node or an environment: one whole node of the deployments' kind, for a short time.

    It asks for as much of the node as a deployment does, because what it finds there is what deployments are planned for.
    """
    small = cluster.small_jobs
    asked = request(name, Topology(), cluster, 0)
    return replace(
        asked,
        minutes=min(small.minutes, cluster.max_minutes or small.minutes),
        account=small.account or asked.account,
        partition=small.partition or asked.partition,
        qos=small.qos or asked.qos,
    )


def _group(features: str | None) -> str:
    """Features in parentheses where they are more than one word, so that the count holds for all of them."""
    words = features or ""
    return words if re.fullmatch(r"[\w.-]+", words) else f"({words})"
