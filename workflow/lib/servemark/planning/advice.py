"""Find what speaks against a plan that is legal and fits. Advice changes nothing that is started or measured.

Each condition has the code of a sentence in ``advice.yaml``, where measured numbers and their sources stand too. A condition is false,
or true, or returns the values of the placeholders that only it knows; see :func:`advise` for the others.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable

from servemark.launch.random_weights import LOAD_FORMAT
from servemark.measurement.thresholds import Verdict
from servemark.planning import cuda_graphs, lengths
from servemark.planning.advice_data import NUMBERS, SENTENCES, measured
from servemark.planning.all_reduce import multicast
from servemark.planning.demand import Asked
from servemark.planning.options import count, whole
from servemark.planning.software import uuids_unread, vocabulary_missing
from servemark.records import LoadPoint
from servemark.variables import table

Found = dict[str, object] | bool

REQUESTS_PER_SLOT: float = Verdict.model_fields["min_requests_per_slot"].default
"""The default, not the configured value: verdict thresholds are no input of a plan, so changing one replans nothing."""

UNROUNDED = ("float16", "bfloat16", "float32")
ROUNDING = ("VLLM_HUMMING_INPUT_QUANT_CONFIG", "VLLM_HUMMING_ONLINE_QUANT_CONFIG", "VLLM_HUMMING_USE_F16_ACCUM", "VLLM_MARLIN_INPUT_DTYPE")
"""Variables of vLLM's kernels that make them calculate in fewer bits (vllm/envs.py, 0.25.1 and 0.32.0)."""


def advise(asked: Asked) -> dict[str, str]:
    """Return the sentences that apply, by code.

    A placeholder of a sentence is a measured number (``{tp4_rate}``), a part of the plan (``{asked.topology.replicas}``), or a value
    that the condition returns.
    """
    found = {code: condition(asked) for code, condition in CONDITIONS.items()}
    return {
        code: SENTENCES[code].format(**NUMBERS, asked=asked, **(values if isinstance(values, dict) else {}))
        for code, values in found.items()
        if values
    }


def data_parallel_instead(asked: Asked) -> Found:
    """Detect tensor parallelism over a node at a load that data parallel engines with spread experts served faster."""
    topology, size = asked.topology, asked.topology.tensor_parallel
    inside = topology.replica_size == size and topology.nodes <= topology.replicas
    least = measured("tp_dp_load") * topology.replicas
    loaded = any(point.ask == "endpoint" and (point.concurrency or 0) >= least for point in asked.closed)
    return asked.cuda and asked.architecture.model_type == "gpt_oss" and size >= 4 and inside and loaded


def queueing(asked: Asked) -> Found:
    """Detect more requests in flight than an engine runs (vllm/v1/core/sched/scheduler.py, max_num_seqs, 0.32.0)."""
    over = [point for point in asked.closed if asked.share(point) > asked.max_num_seqs]
    default = f"vLLM {asked.check.vllm}'s default here"
    whose = "options.max-num-seqs" if count(asked.options, "max-num-seqs") else default
    return bool(over) and {"loads": _loads(over), "most": max(map(asked.share, over)), "whose": whose}


def cache_too_small(asked: Asked) -> Found:
    """Detect more running requests than the KV cache holds (_preempt_request in vLLM's scheduler.py, 0.32.0)."""
    short = [point for point in asked.closed if asked.running(point) > asked.held(point)]
    if not short:
        return False
    worst = max(short, key=lambda point: asked.running(point) / max(asked.held(point), 1e-9))
    shared = lengths.shared_tokens(worst, asked.options)
    return {
        "loads": _loads(short),
        "running": asked.running(worst),
        "tokens": worst.request_tokens,
        "once": f" ({shared} of them kept once for all)" if shared else "",
        "held": round(asked.held(worst)),
        "memory": "options.gpu-memory-utilization" if asked.cuda else "variables.VLLM_CPU_KVCACHE_SPACE",
    }


def length_tight(asked: Asked) -> Found:
    """Detect too little room for random prompts, which the server may tokenise to more tokens than were drawn."""
    limit, given = asked.estimate.max_model_len, whole(asked.options, "max-model-len") is not None
    margin = measured("prompt_margin")
    tight = [p for p in asked.points if limit - p.request_tokens <= margin * p.prompt_tokens]
    if not tight or (not given and asked.architecture.max_positions is None):
        return False
    worst = max(tight, key=lambda p: p.request_tokens)
    do = "Raise options.max-model-len, or leave it out" if given else "Shorten the workload"
    return {"workload": worst.workload, "asked_for": lengths.in_words(worst), "do": do}


def few_requests(asked: Asked) -> Found:
    """Detect points so short that filling and draining the server count as much as the steady state."""
    few = [point for point in asked.closed if point.requests < REQUESTS_PER_SLOT * (point.concurrency or 0)]
    return bool(few) and {"loads": _loads(few), "least": REQUESTS_PER_SLOT, "last": few[-1]}


def graphs_too_large(asked: Asked) -> Found:
    """Detect CUDA graphs beyond what the load can use (vllm/v1/cudagraph_dispatcher.py, 0.32.0)."""
    name, sizes = cuda_graphs.given(asked.options)
    if not sizes or not asked.graphs or asked.speculation or len(asked.closed) < len(asked.points):
        return False
    needs = [cuda_graphs.needed(asked.topology.asked(p.ask), p.concurrency or 0, asked.max_num_seqs) for p in asked.points]
    most = max(needs, default=sizes[-1])
    beyond = sum(size > most for size in sizes)
    few = len(cuda_graphs.sparse(asked.topology, asked.points, asked.max_num_seqs)) if beyond else 0
    values = {"name": name, "largest": sizes[-1], "count": len(sizes), "most": most, "beyond": beyond, "few": few}
    return bool(beyond) and values


def graphs_too_small(asked: Asked) -> Found:
    """Detect steps larger than the largest CUDA graph, which run without one (vllm/config/vllm.py, 0.32.0)."""
    name, sizes = cuda_graphs.given(asked.options)
    over = [point for point in asked.closed if sizes and asked.running(point) > sizes[-1]]
    if not over or not asked.graphs or asked.speculation:
        return False
    return {"name": name, "largest": sizes[-1], "most": max(map(asked.running, over)), "loads": _loads(over)}


def client_too_slow(asked: Asked) -> Found:
    """Detect more streamed chunks than a client process timestamps correctly, if the GPUs reach their usual share of the roofline."""
    rates = {point.name: asked.chunks_per_s(point, measured("roofline_share")) for point in asked.closed}
    many = [point for point in asked.closed if rates[point.name] > measured("client_chunks")]
    return bool(many) and {"loads": _loads(many), "rate": max(rates.values())}


def fewer_bits(asked: Asked) -> Found:
    """Detect options and variables that round more than the checkpoint does. A quantised checkpoint is its maker's choice."""
    method = asked.options.get("quantization")
    same = method is None or _family(str(method)) == _family(asked.architecture.quantisation or "")
    given = {
        "options.kv-cache-dtype": str(asked.options.get("kv-cache-dtype", "auto")),
        "options.quantization": "" if same else str(method),
        **{f"variables.{name}": asked.variables.get(name, "") for name in ROUNDING},
    }
    found = [
        f"{name}: {value}"
        for name, value in given.items()
        if value.lower() not in ("", "0", "false", "auto") and not any(dtype in value for dtype in UNROUNDED)
    ]
    return bool(found) and {"given": "; ".join(found)}


def unknown_variables(asked: Asked) -> Found:
    """Detect ``VLLM_`` variables that the installed vllm/envs.py does not have: vLLM ignores them with a warning."""
    known = set(asked.check.variables)
    unknown = sorted(name for name in asked.variables if known and name.startswith("VLLM_") and name not in known)
    allowed = [name for name in known if not table.row(name).refused]
    near = {name: difflib.get_close_matches(name, allowed, n=1, cutoff=0.85) for name in unknown}
    return bool(near) and {"names": _listed(f"{n} (did you mean {m[0]}?)" if m else n for n, m in near.items())}


CONDITIONS: dict[str, Callable[[Asked], Found]] = {
    "random_weights": lambda asked: asked.options.get("load-format") == LOAD_FORMAT,
    "even_experts": lambda asked: asked.options.get("load-format") == LOAD_FORMAT and asked.architecture.moe,
    "tensor_parallel_spans_nodes": lambda asked: asked.topology.tensor_parallel > asked.topology.devices_per_node,
    "pipeline_spans_nodes": lambda asked: (
        asked.cuda and asked.topology.nodes > asked.topology.replicas and asked.topology.pipeline_parallel > 1
    ),
    "data_parallel_instead": data_parallel_instead,
    "replicas_in_turn": lambda asked: asked.topology.replicas > 1 and asked.topology.routing == "round_robin" and asked.shared,
    "engines_uneven": lambda asked: (
        asked.architecture.moe and asked.topology.data_parallel > 1 and asked.topology.balancing == "server" and asked.shared
    ),
    "multicast": lambda asked: multicast(asked.all_reduce, {**asked.inherited, **asked.variables}),
    "queueing": queueing,
    "cache_too_small": cache_too_small,
    "length_tight": length_tight,
    "few_requests": few_requests,
    "graphs_too_large": graphs_too_large,
    "graphs_too_small": graphs_too_small,
    "client_too_slow": client_too_slow,
    "speculation": lambda asked: bool(asked.speculation) and {"options": _listed(asked.speculation)},
    "fewer_bits": fewer_bits,
    "unknown_variables": unknown_variables,
    "inherited_variables": lambda asked: bool(asked.inherited) and {"names": _listed(sorted(asked.inherited))},
    "vocabulary_fetched": lambda asked: vocabulary_missing(asked.check.vllm, asked.architecture, asked.variables),
    "gpu_uuids_unread": lambda asked: uuids_unread(asked.check.vllm, asked.hardware),
}
"""By code, in the order in which a plan shows them."""


def _listed(items: Iterable[object]) -> str:
    return ", ".join(map(str, items))


def _loads(points: Iterable[LoadPoint]) -> str:
    return _listed(sorted({point.concurrency or 0 for point in points}))


def _family(method: str) -> str:
    """Return a quantisation method without vLLM's variants of its name: gpt_oss_mxfp4, awq_marlin."""
    return method.removeprefix("gpt_oss_").removesuffix("_marlin")


if CONDITIONS.keys() != SENTENCES.keys():
    raise ValueError(f"advice.py and advice.yaml differ in these codes: {CONDITIONS.keys() ^ SENTENCES.keys()}")
