"""What experience says against a deployment that is legal and fits: told before anything is started, and never acted upon.

Every rule names the figure that it rests on and where that comes from, and its sentence the keys that lead out. What is certain to
fail is refused elsewhere (legality, memory); what only may be slower, or may measure something else than was meant, stands here.
"H200" are measurements of gpt-oss-120b's shape with vLLM 0.25.1 on 4 H200, random weights whose routers choose experts evenly
(``random_weights``), 1024 tokens in and out, in which NVLink's faster all-reduces were switched off; "H200, few experts" are the same with
vLLM's own random weights, of which all tokens reach the same few experts: good for start-up and comparisons of networks alone; "GH200" are
a tutorial's figures of vLLM 0.15.1 on nodes of 4 GH200; "recipe" is OpenAI/GPT-OSS_Hopper.yaml and GPT-OSS.md of vllm-project/recipes
(2026-03).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from servemark.config.model import Verdict
from servemark.planning import advice_precision, advice_topology, advice_variables, cuda_graphs, lengths
from servemark.planning.demand import Asked
from servemark.planning.options import count, element_bytes, whole
from servemark.planning.roofline import DEVICES, Device, bound
from servemark.records import PlannedPoint, prefix_tokens, prompt_tokens

REQUESTS_PER_SLOT: float = Verdict.model_fields["min_requests_per_slot"].default
"""The default, and not what is configured: thresholds are no parameter of a plan, so that changing one plans nothing anew."""

CLIENT_CHUNKS_PER_S = 20_000
"""Chunks/s up to which one process of vLLM's client told the time right: at 20,500 (512 streams of 25 ms from an ideal server, one core
of an EPYC, vLLM 0.33) mean TTFT was 169 ms where 25 was true, and p99 ITL 55 ms where 25 was."""

BOUND_REACHED = 1 / 4
"""Share of the roofline bound that gpt-oss-120b reached at 512 requests: 26 % with TP4 on GH200; on H200 18 % with TP4, 23 % with DP4."""


def advice(asked: Asked) -> tuple[str, ...]:
    """One sentence or two for each thing that speaks against what is asked; none changes or stops anything."""
    return tuple(sentence for rule in RULES for sentence in rule(asked))


def queueing(asked: Asked) -> Iterator[str]:
    """More requests in flight than an engine runs: the others wait, and TTFT is counted from when the client sent them.

    Source: vllm/v1/core/sched/scheduler.py, which admits while fewer than max_num_seqs run (0.32.0).
    """
    over = [point for point in asked.closed if asked.share(point) > asked.max_num_seqs]
    if not over:
        return
    most, limit = max(map(asked.share, over)), asked.max_num_seqs
    whose = (
        "options.max-num-seqs" if count(asked.options, "max-num-seqs") else f"vLLM {asked.check.vllm}'s default here"
    )
    yield (
        f"At concurrency {_loads(over)} an engine gets up to {most} requests and runs {limit} at a time ({whose}): up to "
        f"{most - limit} wait in the server, and TTFT is mostly that wait. If that is not what you measure: options.max-num-seqs: "
        f"{most}, more topology.replicas, or a lower concurrency."
    )


def cache(asked: Asked) -> Iterator[str]:
    """The KV cache holds fewer whole requests than an engine runs: vLLM preempts some and computes them again.

    The estimate's own error against recorded servers stands in ``memory``; llm-d-planner's, of the same formula, is 17 % in the number
    of requests (vllm-v0.19.0-accuracy-report). Preemption: vllm/v1/core/sched/scheduler.py, _preempt_request (0.32.0).
    """
    short = [p for p in asked.closed if asked.running(p) > asked.held(p)]
    if not short:
        return
    worst = max(short, key=lambda p: asked.running(p) / max(asked.held(p), 1e-9))
    tokens, shared = lengths.request_tokens(worst), lengths.shared_tokens(worst, asked.options)
    once = f", of which {shared} are kept once for all," if shared else ","
    memory = "options.gpu-memory-utilization" if asked.cuda else "variables.VLLM_CPU_KVCACHE_SPACE"
    yield (
        f"At concurrency {_loads(short)} an engine runs up to {asked.running(worst)} requests of {tokens} tokens{once} and its KV cache is "
        f"expected to hold about {asked.held(worst):.0f}: others wait, or are preempted and computed again. Ways out: a larger {memory} "
        "or topology.tensor_parallel, more topology.replicas, or a lower concurrency."
    )


def graphs_too_large(asked: Asked) -> Iterator[str]:
    """Graphs beyond the requests that an engine can have are of use to steps that also read prompts, and take long to capture.

    Decode graphs end at max_num_seqs, the rest are piecewise ones (vllm/v1/cudagraph_dispatcher.py, 0.32.0; 0.25.1's log: 147 and 51).
    H200, first starts: TP4, 2048: 137 s of 238 s; TP1, the sparse list to 512 (21 sizes) with Humming's kernels for the experts: 5 s of 77
    s, as on the second start, of 38 s. H200, few experts: TP2, 2048: 82 s of 171 s, sized to 512: 14 s; TP1, 640 (59 sizes): 57 s with
    Triton's kernels and 10 to 14 s with Humming's or Marlin's. Whether larger ones gain throughput was not measured; the recipe has 2048.
    """
    name, sizes = cuda_graphs.given(asked.options)
    if not sizes or not asked.graphs or asked.speculation or len(asked.closed) < len(asked.points):
        return
    most = max((asked.captured(point) for point in asked.points), default=sizes[-1])
    beyond = [size for size in sizes if size > most]
    if not beyond:
        return
    few = len(cuda_graphs.sparse(asked.topology, asked.points, asked.max_num_seqs))
    way_out = (
        f"Set it to {most} or `{cuda_graphs.WORKLOAD}`, or have the {few} sizes of "
        f"`options.{cuda_graphs.SIZES}: {cuda_graphs.WORKLOAD}` instead"
        if name == cuda_graphs.LARGEST
        else f"Let the list end at {most}, or write `{cuda_graphs.WORKLOAD}` in its place ({few} sizes for this load)"
    )
    yield (
        f"options.{name} up to {sizes[-1]} captures {len(sizes)} sizes, and the load that is planned needs them for {most} requests an "
        f"engine: {len(beyond)} of them serve only steps that also read prompts. With gpt-oss-120b on H200 (vLLM 0.25.1) 2048 took 137 s "
        "of a first start of 238 s with tensor_parallel 4; with 2 it took 82 s of 171 s, and 512 took 14 s. "
        f"{way_out}, unless you have measured that the larger ones pay."
    )


def graphs_too_small(asked: Asked) -> Iterator[str]:
    """A step larger than the largest graph runs without one.

    Source: vllm/config/vllm.py, _set_cudagraph_sizes (0.32.0); vLLM raises its own default for gpt-oss to 1024 "for performance"
    (model_executor/models/config.py).
    """
    name, sizes = cuda_graphs.given(asked.options)
    over = [point for point in asked.closed if sizes and asked.running(point) > sizes[-1]]
    if not over or not asked.graphs or asked.speculation:
        return
    most = max(map(asked.running, over))
    way_out = "Set it to" if name == cuda_graphs.LARGEST else "Let the list end at"
    yield (
        f"options.{name} ends at {sizes[-1]}, less than the {most} requests that an engine runs at concurrency {_loads(over)}: "
        f"vLLM takes those steps without a CUDA graph. {way_out} {most}, or write `{cuda_graphs.WORKLOAD}` in its place."
    )


def length(asked: Asked) -> Iterator[str]:
    """Random prompts may come out longer than asked when their text is tokenised by the server, which then answers 400.

    H200: of prompts of 1024 tokens with 1024 to answer, half came out too long for a max-model-len of 2176, an eighth more than the
    prompt. A length that is set below what a point asks for is refused (``legality.too_long``); here, one that vLLM derives itself.
    """
    limit, given = asked.estimate.max_model_len, whole(asked.options, "max-model-len") is not None
    if not given and asked.architecture.max_positions is None:
        return
    tight = [p for p in asked.points if 8 * (limit - lengths.request_tokens(p)) <= prompt_tokens(p)]
    if not tight:
        return
    worst = max(tight, key=lengths.request_tokens)
    way_out = "Raise options.max-model-len, or leave it out" if given else "Shorten the workload"
    yield (
        f"Workload {worst.workload} asks for {lengths.in_words(worst)}, and the longest request is "
        f"planned to have {limit}: vLLM answers 400 to what is longer, and random prompts come out longer as text (1024 + 1024 with 2176 "
        f"on H200: half of them failed). {way_out}."
    )


def few_requests(asked: Asked) -> Iterator[str]:
    """So few requests for each place that filling and draining weigh as much as the steady state.

    The recipe takes five prompts for each place; GH200: that the first 512 prompts come at once made P99 TTFT 6.1 s at a median of 0.4 s.
    """
    few = [point for point in asked.closed if point.requests < REQUESTS_PER_SLOT * (point.concurrency or 0)]
    if few:
        yield (
            f"At concurrency {_loads(few)} a point sends fewer than {REQUESTS_PER_SLOT:g} requests for each place ({few[-1].requests} for "
            f"{few[-1].concurrency}): filling and draining weigh so much that the verdict is SUSPECT, unless verdict.min_requests_per_slot "
            "says otherwise. Raise the workload's requests; vLLM's recipe for gpt-oss takes five for each place."
        )


def chunks(asked: Asked) -> Iterator[str]:
    """More streamed chunks than one client process can take the time of: see CLIENT_CHUNKS_PER_S and BOUND_REACHED."""
    names = {gpu.name for gpu in asked.hardware.gpus}
    device = DEVICES.get(names.pop()) if asked.cuda and len(names) == 1 else None
    if device is None or asked.speculation:
        return
    rates = [_chunks_per_s(asked, point, device) for point in asked.closed]
    many = [point for point, rate in zip(asked.closed, rates, strict=True) if rate > CLIENT_CHUNKS_PER_S]
    if many:
        yield (
            f"At concurrency {_loads(many)} a quarter of what the GPUs could give at most is up to {max(rates):,.0f} streamed chunks/s "
            f"for each process of the client. One keeps time up to about {CLIENT_CHUNKS_PER_S:,}; just beyond, it added 140 ms to the mean "
            "TTFT and doubled p99 ITL. More of the workload's `clients` share the load; options.stream-interval sends fewer, larger "
            "chunks, and makes ITL coarser."
        )


def _chunks_per_s(asked: Asked, point: PlannedPoint, device: Device) -> float:
    """Chunks/s that one client process is expected to get."""
    made = bound(
        asked.architecture,
        asked.topology.asked(point.ask),
        device,
        concurrency=asked.running(point) * asked.engines(point),
        input_tokens=lengths.own_tokens(point, asked.options),
        output_tokens=point.output_tokens,
        kv_element_bytes=element_bytes(asked.options),
    )
    interval = count(asked.options, "stream-interval") or 1
    return made.output_tokens_per_s * BOUND_REACHED / interval / point.clients


def prefix_caching(asked: Asked) -> Iterator[str]:
    """Random prompts share no beginning, so the cache of prefixes finds nothing; the recipe for measuring on Hopper turns it off.

    Told on GPUs alone, for which the recipe was written.
    """
    if (
        asked.cuda
        and asked.points
        and not any(map(prefix_tokens, asked.points))
        and lengths.prefixes_cached(asked.options)
    ):
        yield (
            "Prefix caching is on, and random prompts share no beginning: it finds nothing, and hashes every prompt for that. vLLM's "
            "recipe for gpt-oss turns it off to measure: options.no-enable-prefix-caching: true."
        )


def speculation(asked: Asked) -> Iterator[str]:
    """A draft is worth what share of it is accepted, which random prompts say nothing about; a large batch it slows down.

    Source: the recipe, which offers EAGLE3 with 7 draft tokens as an aid to latency that costs throughput at large batches.
    """
    if asked.speculation:
        yield (
            "Speculative decoding is on, and how much of a draft is accepted after random prompts says nothing of real ones; at high "
            "concurrency it costs throughput (vLLM's recipe for gpt-oss has it for latency alone). Measure a deployment without "
            f"{' and '.join(f'options.{name}' for name in asked.speculation)} beside it."
        )


def _loads(points: Iterable[PlannedPoint]) -> str:
    return ", ".join(str(load) for load in sorted({point.concurrency or 0 for point in points}))


RULES: tuple[Callable[[Asked], Iterator[str]], ...] = (
    queueing,
    cache,
    length,
    few_requests,
    *advice_topology.RULES,
    graphs_too_large,
    graphs_too_small,
    prefix_caching,
    speculation,
    chunks,
    *advice_precision.RULES,
    *advice_variables.RULES,
)
