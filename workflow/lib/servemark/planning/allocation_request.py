"""The request to Slurm for each job: pure functions of a topology and a cluster file."""

import shlex
from dataclasses import dataclass, replace

from servemark.config.cluster import Site
from servemark.config.topology import AskedTopology
from servemark.planning.node_share import Share
from servemark.records.topology import Shape
from snakemake_executor_plugin_slurm_guarded.request import Request


def request(name: str, topology: Shape, cluster: Site, points_missing: int, limit_min: float | None = None) -> Request:
    """Return the request for one deployment's allocation.

    The time limit is ``minutes_to_start`` + ``points_missing`` x ``minutes_per_point``, at most ``max_minutes`` or else ``limit_min``. If
    it ends early, the next run measures the remaining points.

    A client's own node of another kind is a second component of a heterogeneous job, because all nodes of a component need GPUs (Slurm
    22.05 refuses even ``--gpus``, which counts over the job). ``extra`` applies to the servers' component.
    """
    minutes = cluster.minutes_to_start + points_missing * cluster.minutes_per_point
    reservation = [f"--reservation={cluster.reservation}"] if cluster.reservation else []
    second = None
    if topology.client == "own" and cluster.other_clients:
        asked = {"partition": cluster.client_partition, "constraint": cluster.client_constraint}
        second = shlex.join([*(f"--{key}={value}" for key, value in asked.items() if value), *reservation])
    return Request(
        name=name,
        nodes=topology.nodes if second else topology.all_nodes,
        gres=_gres(cluster, cluster.gpus_per_node),
        cpus=cluster.cpus_per_node,
        memory_mb=cluster.memory * 1024 if cluster.memory else None,
        minutes=int(min(minutes, cluster.max_minutes or limit_min or minutes)),
        account=cluster.account,
        partition=cluster.partition,
        qos=cluster.qos,
        constraint=cluster.constraint,
        exclusive=cluster.exclusive,
        extra=shlex.join([*reservation, *cluster.extra]),
        second=second,
    )


def _gres(cluster: Site, gpus: int) -> str | None:
    return f"gpu:{f'{cluster.gpu_type}:' if cluster.gpu_type else ''}{gpus}" if cluster.gpus_per_node and gpus else None


PROBE = "probe_hardware"


@dataclass(frozen=True)
class Need:
    """What a short job needs on its node: a GPU if deployments use GPUs, cores, memory in GiB."""

    gpu: bool
    cpus: int
    memory: int


NEEDS = {
    PROBE: Need(gpu=True, cpus=1, memory=2),
    "check_environment": Need(gpu=True, cpus=2, memory=8),
    "build_environment": Need(gpu=False, cpus=4, memory=8),
    "stage_weights": Need(gpu=False, cpus=4, memory=8),
}
"""By rule."""


def small_job(rule: str, cluster: Site, limit_min: float | None = None, *, gpus_there: bool = True) -> Request:
    """Return the request for a short job that examines a node or an environment: a small part of one node of the deployments' kind.

    It requests a deployment's whole share if the cluster file requires this, or if only such a job can show the share: Slurm gives an
    exclusive job all GPUs of its nodes, even without a request. ``gpus_there``: the partition has GPUs.
    """
    small, need = cluster.small_jobs, NEEDS[rule]
    asked = request(rule, AskedTopology(), cluster, 0)
    asked = replace(
        asked,
        minutes=int(min(small.minutes, cluster.max_minutes or limit_min or small.minutes)),
        account=small.account or asked.account,
        partition=small.partition or asked.partition,
        qos=small.qos or asked.qos,
    )
    unasked_gpus = need.gpu and cluster.exclusive and not cluster.gpus_per_node and gpus_there
    if small.whole_node or unasked_gpus or (rule == PROBE and _cores_by_slurm(cluster)):
        return asked
    return replace(
        asked,
        gres=_gres(cluster, int(need.gpu)),
        exclusive=False,
        cpus=min(need.cpus, cluster.cpus_per_node or need.cpus),
        memory_mb=min(need.memory, cluster.memory or need.memory) * 1024,
    )


def _cores_by_slurm(cluster: Site) -> bool:
    """Return whether Slurm chooses the cores of a deployment's job. At many sites it does so by the number of GPUs."""
    return not cluster.exclusive and cluster.cpus_per_node is None


def share(cluster: Site) -> Share | None:
    """Return the share of a node that a deployment's job gets, or None if the probe's job gets the same share."""
    if cluster.small_jobs.whole_node or _cores_by_slurm(cluster):
        return None
    return Share(exclusive=cluster.exclusive, gpus=cluster.gpus_per_node, cpus=cluster.cpus_per_node)
