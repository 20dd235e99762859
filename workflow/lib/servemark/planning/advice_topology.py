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

from servemark.planning.demand import Asked
from servemark.planning.options import flag

REQUESTS = 512
"""Requests at which data parallel engines were measured against tensor parallel over the same four devices."""


def engines_instead(asked: Asked) -> Iterator[str]:
    """Tensor parallel over a node for a mixture of experts that data parallel engines could share, at a load that keeps all of them busy.

    H200, one sitting, 512 requests, 2560 prompts, VALID, total tokens/s and mean TTFT: TP4 with the recipe's options 36,910, 1.84 s; DP4
    with experts spread over the ranks, Humming's kernels, max-model-len 4096: 43,443, 1.12 s. A decode step took about the same (18.8 and
    19.6 ms): what is gained is the reading of prompts, for which TP4 reduces every activation over all GPUs. 2 x TP2 with Humming's
    kernels gave 32,455. It is not the kernels: profiled, Triton's and Humming's took 9.6 and 10.3 ms of a rank's step, and four ranks
    together 18.0 and 17.9 (workflow/README.md). Another sitting: TP4 38,327, 1.39 s; DP4 with Triton's 35,976, 1.00 s, with steps of
    23.2 ms or more, padded from 128 requests to a graph of 160 (`capture.UNEVEN`); 81,705 at 2048. Predicted at 512: TP4 ahead,
    12.1k against 11.3k a GPU. With vLLM's own random weights, of which every token reaches
    the same few experts, four replicas seemed to be ahead (59,487 against 43,849): nothing of that is left when a replica has to read all
    experts in each step.
    """
    topology = asked.topology
    spread = topology.tensor_parallel
    if (
        not asked.cuda
        or asked.architecture.model_type != "gpt_oss"
        or spread < 4
        or topology.data_parallel > 1
        or topology.replica_size > spread
        or topology.nodes > topology.replicas
    ):
        return
    load = [p for p in asked.closed if p.ask == "endpoint" and (p.concurrency or 0) >= REQUESTS * topology.replicas]
    if load:
        yield (
            f"tensor_parallel {spread} reduces every activation over {spread} GPUs, which costs most where prompts are read: gpt-oss-120b "
            "with 512 requests on 4 H200 (vLLM 0.25.1, faster all-reduces off, random weights, the recipe's options and Triton's kernels) "
            "gave 36,910 tokens/s at a mean TTFT of 1.84 s, and 43,443 at 1.12 s with topology: {data_parallel: 4}, "
            "options.enable-expert-parallel: true and the other options of config/examples/gpt-oss-120b.yaml; in another sitting 38,327 "
            f"and 35,976, with Triton's kernels and steps padded by a quarter. Measure topology.data_parallel: {spread} beside it."
        )


def pipeline_across_nodes(asked: Asked) -> Iterator[str]:
    """A replica over several nodes by pipeline: better than tensor parallel across them, and behind replicas that stay inside.

    H200, two nodes of one GPU, TCP between them, 64 requests, 128 prompts, one run, VALID, total tokens/s: TP2 over both by Ray 2,272; PP2
    over both 4,183; two replicas 4,969.
    """
    topology = asked.topology
    if asked.cuda and topology.nodes > topology.replicas and topology.pipeline_parallel > 1:
        yield (
            f"pipeline_parallel {topology.pipeline_parallel} spans nodes. Where a node holds the model, topology.replicas: "
            f"{topology.nodes} with ranks inside a node are faster: gpt-oss-120b with 64 requests on two nodes of one H200, TCP between "
            "them (vLLM 0.25.1, random weights), gave 4,183 tokens/s with two stages, 4,969 with two replicas, and 2,272 with "
            "tensor_parallel 2 over both."
        )


def experts_spread(asked: Asked) -> Iterator[str]:
    """gpt-oss with data parallel engines inside a node, its experts spread over the ranks instead of each cut over all.

    Predicted: 6 to 11 % less than cut, at every load of the table. H200, Humming's kernels, spread: 10,861 tokens/s a GPU at 512
    requests, 15,120 at 1024, 19,317 at 2048 (20,426 with Triton's); cut over all was not served, but profiled: with 16 rows an expert
    Triton's kernels took 9.5 ms of a rank's step cut and 9.6 ms spread. For experts of another shape it may be otherwise.
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
            "cut over all of them; as much less at other loads. Measured was 10.9k with it, and nothing without: measure both."
        )


def balanced_by_the_server(asked: Asked) -> Iterator[str]:
    """Engines of a mixture of experts step together, padded to the one with the most requests; vLLM balances them by stale counts.

    vLLM's front end counts what it gave out since it last heard from the engines, 10 times a second (vllm/v1/engine/core_client.py,
    0.25.1). Real vLLM 0.32.0, tiny-dense on CPU, four engines, 640 requests, 128 in flight: the fullest engine had 34 to 37 in 81 of 102
    looks with one API server, 33 in 33 of 48 with four, and 32 in 165 of 168 behind the router. H200: see `capture.UNEVEN`.
    """
    topology = asked.topology
    shared = [p for p in asked.closed if p.ask == "endpoint" and (p.concurrency or 0) > asked.engines(p)]
    if (
        asked.cuda
        and asked.architecture.experts
        and topology.data_parallel > 1
        and topology.balancing == "server"
        and shared
    ):
        yield (
            f"data_parallel {topology.data_parallel}: its engines step together, padded to the one with the most requests, and vLLM gives "
            "some more than others (of four engines with an equal share of 32 one had 33, and up to 37 with options.api-server-count: 1). "
            "Where requests are alike, topology.balancing: router keeps them equal."
        )


def in_turn(asked: Asked) -> Iterator[str]:
    """A closed loop behind a router that gives requests in turn: what ends in one server is made up for in all of them.

    Two H200, a replica each, 512 of 1536 requests of 1024 and 1024 tokens in flight, vLLM 0.25.1: 20,446 tokens/s in turn, with 163 and
    336 at the worst; 22,239 to the least busy, with as many in each at every look while all places were taken.
    """
    topology = asked.topology
    shared = [p for p in asked.closed if p.ask == "endpoint" and (p.concurrency or 0) > asked.engines(p)]
    if asked.cuda and topology.replicas > 1 and topology.routing == "round_robin" and shared:
        yield (
            f"replicas {topology.replicas}: the router gives each one request in turn, so when many end in one, what follows goes to all, "
            "and some get far more than others (of 512, one of two had 336: 20,446 tokens/s, and 22,239 with topology.routing: "
            "least_requests)."
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
    engines_instead,
    pipeline_across_nodes,
    experts_spread,
    in_turn,
    balanced_by_the_server,
    asynchronous_scheduling,
)
