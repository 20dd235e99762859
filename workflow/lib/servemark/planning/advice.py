"""Find reasons against a plan that is legal and fits. Advice changes neither what servemark starts nor what it measures.

Each condition has the code of a sentence in ``advice.yaml``, which also has the measured numbers. A condition returns false, true, or
the values of the sentence's own placeholders.
"""

import difflib
from collections.abc import Callable, Iterable

from servemark.launch.random_weights import LOAD_FORMAT
from servemark.measurement.thresholds import Verdict
from servemark.planning import cuda_graphs, precision
from servemark.planning.advice_data import NUMBERS, SENTENCES, measured
from servemark.planning.all_reduce import multicast
from servemark.planning.demand import Demand
from servemark.planning.options import count, in_words, shared_tokens, whole
from servemark.planning.software import uuids_unread, vocabulary_missing
from servemark.records import LoadPoint
from servemark.variables import table

Found = dict[str, object] | bool

REQUESTS_PER_SLOT: float = Verdict.model_fields["min_requests_per_slot"].default
"""The default, not the configured value: a plan does not depend on thresholds, so changing one replans nothing."""


def advise(demand: Demand) -> dict[str, str]:
    """Return the sentences that apply, by code.

    A placeholder is a measured number (``{tp4_rate}``), a part of the plan (``{demand.topology.replicas}``), or a value of the condition.
    """
    found = {code: condition(demand) for code, condition in CONDITIONS.items()}
    return {
        code: SENTENCES[code].format(**NUMBERS, demand=demand, **(values if isinstance(values, dict) else {}))
        for code, values in found.items()
        if values
    }


def data_parallel_instead(demand: Demand) -> Found:
    """Detect tensor parallelism over a node at a load that data parallel engines with expert parallelism served faster."""
    topology, size = demand.topology, demand.topology.tensor_parallel
    inside = topology.replica_size == size and topology.nodes <= topology.replicas
    least = measured("tp_dp_load") * topology.replicas
    loaded = any(point.ask == "endpoint" and (point.concurrency or 0) >= least for point in demand.closed)
    return demand.cuda and demand.architecture.model_type == "gpt_oss" and size >= 4 and inside and loaded


def one_gpu_suffices(demand: Demand) -> Found:
    """Detect engines of several GPUs if one GPU holds the model and the load of an engine."""
    alone = demand.on_one_gpu
    if alone is None or any(demand.running(point) > alone.cacheable(point) for point in demand.closed):
        return False
    estimate = alone.estimate
    # The requests that the ranking counts. vLLM's log has fewer: it counts the tokens of a whole step for each sliding-window layer.
    longest = max(demand.points, key=lambda point: point.request_tokens, default=None)
    return {
        "weights": estimate.weights_gib,
        "memory": alone.server.memory_gib,
        "requests": int(alone.cacheable(longest) if longest else estimate.max_concurrency or 0),
        "length": longest.request_tokens if longest else estimate.max_model_len,
        "gpus": demand.topology.engine_size,
        "replicas": alone.topology.replicas,
    }


def stages_idle(demand: Demand) -> Found:
    """Detect fewer requests in flight on an engine than it has pipeline stages: a request that generates is in one stage at a time."""
    stages = demand.topology.pipeline_parallel
    few = [point for point in demand.closed if demand.share(point) < stages]
    return bool(few) and {"loads": _loads(few), "least": min(map(demand.share, few)), "enough": stages * max(map(demand.engines, few))}


def queueing(demand: Demand) -> Found:
    """Detect more requests in flight than an engine runs (vllm/v1/core/sched/scheduler.py, max_num_seqs, 0.32.0)."""
    over = [point for point in demand.closed if demand.share(point) > demand.max_num_seqs]
    default = f"vLLM {demand.check.vllm}'s default here"
    whose = "options.max-num-seqs" if count(demand.options, "max-num-seqs") else default
    return bool(over) and {"loads": _loads(over), "most": max(map(demand.share, over)), "whose": whose}


def cache_too_small(demand: Demand) -> Found:
    """Detect more running requests than the KV cache holds (_preempt_request in vLLM's scheduler.py, 0.32.0)."""
    short = [point for point in demand.closed if demand.running(point) > demand.cacheable(point)]
    if not short:
        return False
    worst = max(short, key=lambda point: demand.running(point) / max(demand.cacheable(point), 1e-9))
    shared = shared_tokens(worst, demand.options)
    return {
        "loads": _loads(short),
        "running": demand.running(worst),
        "tokens": worst.request_tokens,
        "once": f" ({shared} of them kept once for all)" if shared else "",
        "held": round(demand.cacheable(worst)),
        "memory": "options.gpu-memory-utilization" if demand.cuda else "variables.VLLM_CPU_KVCACHE_SPACE",
    }


def length_tight(demand: Demand) -> Found:
    """Detect too little room for random prompts, which the server may tokenise to more tokens than the client drew."""
    limit, given = demand.estimate.max_model_len, whole(demand.options, "max-model-len") is not None
    margin = measured("prompt_margin")
    random = [p for p in demand.points if p.prompts.dataset in ("random", "prefix")]
    tight = [p for p in random if limit - p.request_tokens <= margin * p.prompt_tokens]
    if not tight or (not given and demand.architecture.max_positions is None):
        return False
    worst = max(tight, key=lambda p: p.request_tokens)
    do = "Raise options.max-model-len, or leave it out" if given else "Shorten the workload"
    return {"workload": worst.workload, "lengths": in_words(worst), "do": do}


def few_requests(demand: Demand) -> Found:
    """Detect points with few requests for each slot, so that filling and draining the server weigh much."""
    few = [point for point in demand.closed if point.requests < REQUESTS_PER_SLOT * (point.concurrency or 0)]
    return bool(few) and {"loads": _loads(few), "least": REQUESTS_PER_SLOT, "last": few[-1]}


def graphs_too_large(demand: Demand) -> Found:
    """Detect CUDA graphs larger than the load can use (vllm/v1/cudagraph_dispatcher.py, 0.32.0)."""
    name, sizes = cuda_graphs.given(demand.options)
    if not sizes or not demand.graphs or demand.speculation or len(demand.closed) < len(demand.points):
        return False
    needs = [cuda_graphs.needed(demand.topology.asked(p.ask), p.concurrency or 0, demand.max_num_seqs) for p in demand.points]
    most = max(needs, default=sizes[-1])
    beyond = sum(size > most for size in sizes)
    few = len(cuda_graphs.sparse(demand.topology, demand.points, demand.max_num_seqs)) if beyond else 0
    values = {"name": name, "largest": sizes[-1], "count": len(sizes), "most": most, "beyond": beyond, "few": few}
    return bool(beyond) and values


def graphs_too_small(demand: Demand) -> Found:
    """Detect steps larger than the largest CUDA graph, which run without a graph (vllm/config/vllm.py, 0.32.0)."""
    name, sizes = cuda_graphs.given(demand.options)
    over = [point for point in demand.closed if sizes and demand.running(point) > sizes[-1]]
    if not over or not demand.graphs or demand.speculation:
        return False
    return {"name": name, "largest": sizes[-1], "most": max(map(demand.running, over)), "loads": _loads(over)}


def client_too_slow(demand: Demand) -> Found:
    """Detect more streamed chunks than a client process timestamps correctly, if GPUs reach their usual share of the roofline bound."""
    rates = {point.name: demand.chunks_per_s(point, measured("roofline_share")) for point in demand.closed}
    many = [point for point in demand.closed if rates[point.name] > measured("client_chunks")]
    return bool(many) and {"loads": _loads(many), "rate": max(rates.values())}


def fewer_bits(demand: Demand) -> Found:
    """Detect options and variables that round more than the checkpoint does."""
    found = precision.fewer_bits(demand.options, demand.variables, demand.architecture.quantisation)
    return bool(found) and {"given": "; ".join(f"{place}: {value}" for place, value in found.items())}


def unknown_variables(demand: Demand) -> Found:
    """Detect ``VLLM_`` variables that are not in the installed vllm/envs.py: vLLM ignores them with a warning."""
    known = set(demand.check.variables)
    unknown = sorted(name for name in demand.variables if known and name.startswith("VLLM_") and name not in known)
    allowed = [name for name in known if not table.row(name).refused]
    near = {name: difflib.get_close_matches(name, allowed, n=1, cutoff=0.85) for name in unknown}
    return bool(near) and {"names": _listed(f"{n} (did you mean {m[0]}?)" if m else n for n, m in near.items())}


CONDITIONS: dict[str, Callable[[Demand], Found]] = {
    "cache_not_estimated": lambda demand: bool(demand.architecture.unknown) and {"why": demand.architecture.unknown},
    "random_weights": lambda demand: demand.options.get("load-format") == LOAD_FORMAT,
    "even_experts": lambda demand: demand.options.get("load-format") == LOAD_FORMAT and demand.architecture.moe,
    "tensor_parallel_spans_nodes": lambda demand: demand.topology.tensor_parallel > demand.topology.devices_per_node,
    "pipeline_spans_nodes": lambda demand: (
        demand.cuda and demand.topology.nodes > demand.topology.replicas and demand.topology.pipeline_parallel > 1
    ),
    "stages_idle": stages_idle,
    "one_gpu_suffices": one_gpu_suffices,
    "data_parallel_instead": data_parallel_instead,
    "replicas_in_turn": lambda demand: demand.topology.replicas > 1 and demand.topology.routing == "round_robin" and demand.over_engines,
    "engines_uneven": lambda demand: (
        demand.architecture.moe and demand.topology.data_parallel > 1 and demand.topology.balancing == "server" and demand.over_engines
    ),
    "multicast": lambda demand: multicast(demand.all_reduce, {**demand.inherited, **demand.variables}),
    "queueing": queueing,
    "cache_too_small": cache_too_small,
    "length_tight": length_tight,
    "few_requests": few_requests,
    "graphs_too_large": graphs_too_large,
    "graphs_too_small": graphs_too_small,
    "client_too_slow": client_too_slow,
    "speculation": lambda demand: bool(demand.speculation) and {"options": _listed(demand.speculation)},
    "fewer_bits": fewer_bits,
    "unknown_variables": unknown_variables,
    "inherited_variables": lambda demand: bool(demand.inherited) and {"names": _listed(sorted(demand.inherited))},
    "vocabulary_fetched": lambda demand: vocabulary_missing(demand.check.vllm, demand.architecture, demand.variables),
    "gpu_uuids_unread": lambda demand: uuids_unread(demand.check.vllm, demand.hardware),
}
"""Conditions by code, in the order of a plan's warnings."""


def _listed(items: Iterable[object]) -> str:
    return ", ".join(map(str, items))


def _loads(points: Iterable[LoadPoint]) -> str:
    return _listed(sorted({point.concurrency or 0 for point in points}))


if CONDITIONS.keys() != SENTENCES.keys():
    raise ValueError(f"advice.py and advice.yaml differ in these codes: {CONDITIONS.keys() ^ SENTENCES.keys()}")
