"""Environments that cannot serve: a CUDA lock file on nodes without GPUs."""

from collections.abc import Iterator

from servemark.config.model import Config
from servemark.config.problems import Problem
from servemark.environments import lockfiles


def without_gpus(config: Config) -> Iterator[Problem]:
    """Yield a problem for each CUDA lock file whose jobs get no GPU.

    Slurm gives an exclusive job all GPUs of its nodes without a request, so `gpus_per_node: 0` is legal there.
    """
    if config.cluster is None or config.cluster.gpus_per_node or config.cluster.exclusive:
        return
    locks = lockfiles.table(lockfiles.CHECKOUT / "envs")
    for name in sorted({deployment.environment for deployment in config.deployments.values()}):
        lock = locks.get(config.environments[name].lock or "")
        if lock and lock.cuda:
            text = (
                "needs GPUs, and the cluster file has `exclusive: false` and `gpus_per_node: 0`, so jobs get none. Set `gpus_per_node` "
                "there to the GPUs of a node, or set `lock: cpu`. If Slurm does not manage the GPUs, set `exclusive: true`"
            )
            yield Problem(("environments", name, "lock"), text)
