"""What experience says of how ranks are arranged; see ``advice`` for how to read the sources.

"Predicted" is aiconfigurator 0.12 with its kernel data of vLLM 0.24, for gpt-oss-120b on 4 H200, 1024 tokens in and out, total tokens/s
a GPU. Against published measurements it is optimistic by 1.1 to 1.4, the more so the larger the batch.

| requests | TP4 | 2 x TP2 | 4 x TP1 | DP4, experts cut by TP4 | DP4, experts spread (EP4) |
|---|---|---|---|---|---|
| 64 | 3.7k | 3.3k | 2.7k | 3.5k | 3.2k |
| 256 | 9.1k | 7.2k | 5.5k | 9.0k | 8.0k |
| 512 | 12.1k | 10.8k | 8.9k | 12.5k | 11.3k |
| 1024 | 14.6k | 13.7k | 12.6k | 15.4k | 14.2k |
| 2048 | 18.3k | 17.8k | 16.0k | 19.9k | 18.4k |
| 4096 | 20.8k | 22.4k | 21.1k | 23.3k | 21.9k |

That tensor parallel should not cross nodes is told by ``legality``, on every machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from servemark.planning.asked import Asked
from servemark.planning.options import flag

REQUESTS_A_DEVICE = 128
"""Requests for each device at which replicas of one were measured to be ahead of tensor parallel over four."""


def replicas_instead(asked: Asked) -> Iterator[str]:
    """Tensor parallel over devices of which each could serve alone, at a load that is known to suit replicas.

    H200, 512 requests, by hand and with the same options: 39,368 tokens/s in total with TP4, 56,472 with 4 replicas of one GPU. By
    servemark, 2560 prompts, one sitting, VALID: 43,849 with TP4 and vLLM's choice of kernels, 59,487 with 4 replicas and Humming's,
    which is 87 % of these replicas' own roofline; 89,041 at 2048 requests (43 %). Predicted is the opposite below 4096: a replica reads
    every expert in each step, however few requests it has, which at few requests is nearly all of its time. The faster all-reduces
    that were off cost TP4 something. So told for a MoE at 128 requests a device and more, and as something to measure.
    """
    topology = asked.topology
    tp, spread = topology.tensor_parallel, topology.replicas * topology.tensor_parallel
    if not asked.cuda or not asked.architecture.moe or tp == 1 or topology.replica_size > tp:
        return
    nodes = f"nodes: {topology.nodes}, " if topology.nodes > 1 else ""
    fitting = [
        point
        for point in asked.closed
        if point.ask == "endpoint"
        and (point.concurrency or 0) >= REQUESTS_A_DEVICE * spread
        and asked.held_alone(point.input_tokens + point.output_tokens) >= -(-(point.concurrency or 0) // spread)
    ]
    if fitting:
        yield (
            f"One device holds the weights, and the KV cache of its share of concurrency {fitting[0].concurrency}: topology: "
            f"{{{nodes}replicas: {spread}}} instead of tensor_parallel {tp} talks to nobody in its layers. gpt-oss-120b with 512 "
            "requests on 4 H200 (vLLM 0.25.1, NVLink's faster all-reduces off) gave 56,472 tokens/s with 4 replicas and 39,368 with "
            "tensor_parallel 4, in another sitting 59,487 and 43,849. aiconfigurator predicts the opposite below 4096 requests (at 512, "
            "8.9k against 12.1k a GPU), so measure both."
        )


def pipeline_across_nodes(asked: Asked) -> Iterator[str]:
    """A replica over several nodes by pipeline: better than tensor parallel across them, and behind replicas that stay inside.

    H200, 512 requests on 4 GPUs: 29,178 tokens/s in total with TP2 x PP2 over two nodes of two (TCP between them), 39,368 with TP4 in
    one node, 56,472 with 4 replicas; TP4 over the two nodes did not finish 512 requests in 180 s.
    """
    topology = asked.topology
    if asked.cuda and topology.nodes > topology.replicas and topology.pipeline_parallel > 1:
        yield (
            f"pipeline_parallel {topology.pipeline_parallel} spans nodes. Where a node holds the model, topology.replicas: "
            f"{topology.nodes} with ranks inside a node are faster: gpt-oss-120b with 512 requests on 4 H200 (vLLM 0.25.1) gave 29,178 "
            "tokens/s with two stages on two nodes over TCP, 39,368 on one node with tensor_parallel 4, and 56,472 with 4 replicas."
        )


def experts_spread(asked: Asked) -> Iterator[str]:
    """gpt-oss with data parallel engines inside a node, its experts spread over the ranks instead of each cut over all.

    Predicted: 6 to 11 % less at every load of the table. Not measured here, and for experts of another shape it may be otherwise.
    """
    topology = asked.topology
    if (
        asked.cuda
        and asked.architecture.model_type == "gpt_oss"
        and topology.data_parallel > 1
        and topology.nodes <= topology.replicas
        and flag(asked.options, "enable-expert-parallel")
    ):
        yield (
            f"data_parallel {topology.data_parallel} with options.enable-expert-parallel: for gpt-oss-120b on 4 H200 aiconfigurator "
            "predicts 11.3k tokens/s a GPU at 512 requests with experts spread over the ranks, and 12.5k without this option, each expert "
            "cut over all of them; as much less at other loads. It was not measured: measure both."
        )


def asynchronous_scheduling(asked: Asked) -> Iterator[str]:
    """vLLM 0.15.1 schedules the next step while one runs, but silently not with Ray (vllm/config/vllm.py, line 562 of its wheel).

    Known of 0.15 alone; from 0.33 on Ray's executor has it. Its gain in gpustack's H100 tests of gpt-oss-120b: 3.8 %.
    """
    if asked.cuda and asked.topology.executor == "ray" and asked.check.vllm.startswith("0.15."):
        yield (
            f"vLLM {asked.check.vllm} turns asynchronous scheduling off with executor: ray and does not say so; it was worth 3.8 % with "
            "gpt-oss-120b on H100. topology.executor: mp keeps it, over several nodes too."
        )


RULES: tuple[Callable[[Asked], Iterator[str]], ...] = (
    replicas_instead,
    pipeline_across_nodes,
    experts_spread,
    asynchronous_scheduling,
)
