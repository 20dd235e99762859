"""``executor: mp``: vLLM starts the ranks of a node as child processes of a ``vllm serve`` there.

Sources: vLLM's docs/serving/parallelism_scaling.md (--nnodes, --node-rank, --headless) and data_parallel_deployment.md.
"""

from collections.abc import Sequence

from servemark.deployment.executors import Executor
from servemark.nodes import port_plan
from servemark.records import Replica


class Mp(Executor):
    """One ``vllm serve`` on each node of a replica; the first receives the requests."""

    def processes(self, index: int, replica: Replica) -> list[list[str]]:
        topology, head, count = self.here.plan.topology, self.nodes[replica.parts[0].node], len(replica.parts)
        size = topology.data_parallel
        common = ["--distributed-executor-backend", "mp", *(["--data-parallel-size", str(size)] if size > 1 else [])]
        if count == 1:
            return [common]
        (port,) = port_plan.of_executor(topology, head, index)
        if size == 1:
            common += ["--nnodes", str(count), "--master-addr", head.address, "--master-port", str(port)]
            return [[*common, "--node-rank", str(rank), *(["--headless"] if rank else [])] for rank in range(count)]
        local = size // count
        common += ["--data-parallel-size-local", str(local), "--data-parallel-address", head.address, "--data-parallel-rpc-port", str(port)]
        return [common, *([*common, "--headless", "--data-parallel-start-rank", str(local * rank)] for rank in range(1, count))]

    def variables(self, devices: Sequence[int]) -> dict[str, str]:
        topology = self.here.plan.topology
        ranks = topology.replica_size // topology.nodes_of_a_replica
        if self.here.hardware.accelerator != "cpu" or ranks == 1:
            return {}
        # Bind each rank to the core of its device's number. vLLM binds each rank to a NUMA node and does not start with too few of them.
        return {"VLLM_CPU_OMP_THREADS_BIND": "|".join(map(str, devices or range(ranks)))}
