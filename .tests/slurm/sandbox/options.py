"""The options of a sandbox."""

from __future__ import annotations

import os
from dataclasses import dataclass

LOGIN = "login"


class SandboxError(RuntimeError):
    """An error of the sandbox; the text states what happened, where to look and what to do."""


@dataclass(frozen=True)
class Options:
    """The options of a sandbox. Times are in seconds.

    Attributes:
        accounting: run slurmdbd on a private MariaDB and enforce accounts, limits and QOS.
        preemption: add the partitions ``low-requeue``, ``low-cancel`` and ``high`` over the GPU nodes.
        kill_wait: from SIGTERM to SIGKILL at the end of a job (Slurm's default is 30).
        client_node: add ``client1``, without GPUs, in the partitions ``client`` and (with the GPU nodes) ``mixed``.
        proctrack: ``cgroup``: a job's daemons end with it; ``linuxproc``: processes outside its tree survive.
        slurmd_timeout: how long slurmctld waits for a silent slurmd until the node is DOWN and its jobs NODE_FAIL.
            slurmctld checks in intervals: with 20 it took 31 s until NODE_FAIL, with 4 it took 25 s (Slurm 22.05).
        requeue_wait: least time before a requeued job starts again (Slurm's default is 120).
        accounts: Slurm accounts of root and ``second_user``; the first is the default one.
        qos: QOS in addition to ``normal``, open to all accounts.
        second_user: an existing user of the machine who may also submit jobs; empty for none.
        default_route: add a default route through ``eth0``, which is not connected to other hosts.
        gpus: fake GPUs per GPU node.
        cpus: fake cores per node.
        memory_mb: fake memory per node, MiB.
        shared_paths: folders below /tmp or /run that all nodes see; the sandbox's folder always is one.
        release: of Slurm, one of ``trees.SUITES``; empty: the machine's own. The default is the environment variable SERVEMARK_SLURM.
    """

    accounting: bool = True
    preemption: bool = False
    kill_wait: int = 30
    client_node: bool = False
    proctrack: str = "cgroup"
    slurmd_timeout: int = 20
    requeue_wait: int = 15
    accounts: tuple[str, ...] = ("research",)
    qos: tuple[str, ...] = ()
    second_user: str = "nobody"
    default_route: bool = False
    gpus: int = 4
    cpus: int = 16
    memory_mb: int = 64000
    shared_paths: tuple[str, ...] = ()
    release: str = os.environ.get("SERVEMARK_SLURM", "")

    def __post_init__(self) -> None:
        if self.proctrack not in ("cgroup", "linuxproc"):
            raise SandboxError(f"proctrack is {self.proctrack!r}; it must be cgroup or linuxproc.")
        if not self.accounts:
            raise SandboxError("accounts is empty; name at least one.")

    @property
    def gpu_nodes(self) -> tuple[str, ...]:
        return ("node1", "node2")

    @property
    def compute_nodes(self) -> tuple[str, ...]:
        return (*self.gpu_nodes, "client1") if self.client_node else self.gpu_nodes

    @property
    def all_nodes(self) -> tuple[str, ...]:
        return (LOGIN, *self.compute_nodes)
