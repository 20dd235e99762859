"""``executor: mp``: vLLM starts the ranks of a node as child processes of a ``vllm serve`` there.

Sources: vLLM's docs/serving/parallelism_scaling.md (--nnodes, --node-rank, --headless) and data_parallel_deployment.md.
"""

from __future__ import annotations

from collections.abc import Sequence

from servemark.deployment.executors import Executor, Rank
from servemark.nodes import port_plan
from servemark.records import Replica


class Mp(Executor):
    """One ``vllm serve`` on each node of a replica; the first receives the requests."""

    def ranks(self, index: int, replica: Replica) -> tuple[Rank | None, ...]:
        count, head = len(replica.parts), self.nodes[replica.parts[0].node]
        if count == 1:
            return (None,)
        (port,) = port_plan.of_executor(self.here.plan.topology, head, index)
        return tuple(Rank(count, number, head.address, port) for number in range(count))

    def arguments(self, host: str, rank: Rank | None) -> list[str]:
        size = self.here.plan.topology.data_parallel
        argv = ["--distributed-executor-backend", "mp"]
        argv += ["--data-parallel-size", str(size)] if size > 1 else []
        if rank is None:
            return argv
        follows = ["--headless"] if rank.index else []
        if size == 1:
            argv += ["--nnodes", str(rank.nodes), "--node-rank", str(rank.index)]
            return [*argv, "--master-addr", rank.address, "--master-port", str(rank.port), *follows]
        local = size // rank.nodes
        argv += ["--data-parallel-size-local", str(local), "--data-parallel-address", rank.address]
        argv += ["--data-parallel-rpc-port", str(rank.port), *follows]
        return argv + (["--data-parallel-start-rank", str(local * rank.index)] if rank.index else [])

    def variables(self, devices: Sequence[int]) -> dict[str, str]:
        topology = self.here.plan.topology
        ranks = topology.replica_size // topology.nodes_of_a_replica
        if self.here.hardware.accelerator != "cpu" or ranks == 1:
            return {}
        # Bind each rank to the core of its device's number. vLLM binds each rank to a NUMA node and does not start with too few of them.
        return {"VLLM_CPU_OMP_THREADS_BIND": "|".join(map(str, devices or range(ranks)))}
