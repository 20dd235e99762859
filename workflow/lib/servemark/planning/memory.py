"""The memory that a deployment needs and the size of its KV cache, by vLLM's rules, and the same values from a server's log.

GiB are 2**30 bytes. A rank is the worker of one device; an engine is the tp x pp ranks that share one scheduler.
"""

import bisect
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from servemark.errors import PlanRefused
from servemark.planning.advice_data import measured
from servemark.planning.options import CPU_SPACE, GIB, Server, whole
from servemark.records import Estimate
from servemark.weights.architecture import Architecture
from servemark.weights.quantisation import MXFP4_BITS

BLOCK_TOKENS = {"cuda": 16, "cpu": 128}
"""Tokens of a KV cache block: vllm/config/cache.py DEFAULT_BLOCK_SIZE and vllm/platforms/cpu.py (0.32.0)."""

MXFP4_ALIGNMENT = 64
"""vLLM pads an mxfp4 expert's width on a rank to this multiple: fused_moe/oracle/mxfp4.py,
mxfp4_round_up_hidden_size_and_intermediate_size, for the Triton kernels that are the default on Hopper."""

DRIVER_RESERVE_GIB = measured("driver_reserve")
"""Memory that nvidia-smi counts and CUDA reserves."""

ACTIVATION_GIB = {kind: measured(f"activations_{kind}") for kind in ("llama", "gpt_oss", "other")}
"""Peak activations of vLLM's profiling run by kind of model, for any tensor parallel size."""

NON_TORCH_GIB = (measured("non_torch_one_rank"), measured("non_torch_more_ranks"))
"""CUDA context and, with tp * pp >= 2, NCCL buffers."""

CUDA_GRAPH_GIB = measured("cuda_graphs")
"""Memory that vLLM reserves for CUDA graphs, from 0.21 on."""

CPU_PROCESS_GIB = measured("cpu_process")
"""Resident size of a CPU worker without weights."""


@dataclass(frozen=True)
class Pool:
    """The KV cache of one rank, as vLLM counts it.

    Attributes:
        block_bytes: bytes of one block, over the layers of the largest group in the largest stage.
        request_blocks: blocks of one request of max_model_len.
        token_bytes: bytes of one token over all attention layers of the largest stage, if all attention were full.
        state_bytes: bytes of one request's states over all layers of the largest stage, whatever its length.
    """

    block_bytes: int
    request_blocks: int
    token_bytes: int
    state_bytes: int = 0


STATE: Literal["state"] = "state"
"""Kind of a cache that has one state for each request; the other kinds are windows, None for full attention."""

Kind = int | Literal["state"] | None


def layer_groups(kinds: Sequence[Kind]) -> list[list[int]]:
    """Return the layers of each group: a group shares a block table, and all groups share one pool of blocks.

    A group has as many layers as the rarer kind, or as the other kind if that has less than 1.5 times as many. Source:
    vllm/v1/core/kv_cache_utils.py, _get_kv_cache_groups_uniform_page_size (0.32.0).

    Args:
        kinds: of the cache of each layer.
    """
    buckets: defaultdict[Kind, list[int]] = defaultdict(list)
    for layer, kind in enumerate(kinds):
        buckets[kind].append(layer)
    sizes = [len(layers) for layers in buckets.values()]
    size = max(sizes) if max(sizes) < 1.5 * min(sizes) else min(sizes)
    groups = []
    for layers in buckets.values():
        count = math.ceil(len(layers) / size)
        groups += [layers[start::count] for start in range(count)]
    return groups


def kv_pool(architecture: Architecture, server: Server, max_model_len: int) -> Pool:
    """Return the block size in bytes and the blocks of a request.

    A sliding-window layer holds the window less one, the tokens in flight and one more block (kv_cache_interface.py, SlidingWindowSpec).
    A layer with a state holds one block for each request; with prefix caching two, or three of Mamba 2
    (MambaSpec). Where both kinds exist, vLLM enlarges
    the blocks of attention until one holds a state, and pads the state to it (platforms/interface.py, _align_hybrid_block_size). Bytes of
    a block: kv_cache_utils.py, _get_kv_cache_bytes_per_block (0.32.0).
    """
    tp, free = server.topology.tensor_parallel, architecture.kinds.attention_free
    layer_token = architecture.token_bytes(tp, server.element_bytes)
    state = architecture.state.rank_bytes(tp, architecture.dtype_bytes, server.state_element_bytes) if architecture.state else 0
    caches: list[tuple[int, Kind]] = [(layer, window) for layer, window in enumerate(architecture.windows) if layer not in free]
    block_tokens = server.block_tokens or BLOCK_TOKENS[server.accelerator]
    if state and caches:
        block_tokens *= math.ceil(state / (block_tokens * layer_token))
    page = block_tokens * layer_token if caches else state
    # Without attention, vLLM turns prefix caching off by default (config/model.py, is_prefix_caching_supported).
    states = 2 + architecture.state.checkpoints if caches and architecture.state and server.prefix_caching else 1
    caches += [(layer, STATE) for layer in sorted(architecture.kinds.stateful)]
    starts = [sum(server.stages[:stage]) for stage in range(len(server.stages))]
    stages = [range(start, start + size) for start, size in zip(starts, server.stages, strict=True)]
    groups = layer_groups([kind for _, kind in caches])
    largest_group = max(sum(caches[one][0] in stage for one in group) for stage in stages for group in groups)
    blocks = 0
    for kind in (caches[group[0]][1] for group in groups):
        if isinstance(kind, str):
            blocks += states
            continue
        tokens = max_model_len if kind is None else min(kind - 1 + server.batched_tokens, max_model_len)
        blocks += math.ceil(tokens / block_tokens) + (kind is not None)
    return Pool(
        block_bytes=largest_group * page,
        request_blocks=blocks,
        token_bytes=max(sum(layer not in free for layer in stage) for stage in stages) * layer_token,
        state_bytes=max(sum(layer in architecture.kinds.stateful for layer in stage) for stage in stages) * state,
    )


def rank_weight_bytes(architecture: Architecture, server: Server) -> float:
    """Return the bytes of the weights on the rank with the most.

    The shape of the model gives each part's share: layers over stages, heads and widths over tp, experts over tp * dp, routers and the
    projections to latent vectors whole. The checkpoint's tensor bytes then correct the sum. Padding inside quantised kernels is missing.
    Tests compare with recorded servers.
    """
    parts = architecture.parameters()
    tp, shards = server.topology.tensor_parallel, server.topology.tensor_parallel * server.topology.data_parallel
    dense, expert, plain = architecture.weight_bits / 8, architecture.expert_bits / 8, architecture.dtype_bytes
    routers = architecture.expert_layers * architecture.hidden * architecture.experts
    share = max(server.stages) / architecture.layers
    copied = architecture.attention_layers * architecture.latent.copied(architecture.hidden) if architecture.latent else 0
    layers = (parts.dense - routers - copied) * dense / tp + copied * dense + routers * plain
    whole = server.spread and architecture.moe
    held = math.ceil(architecture.experts / shards) / architecture.experts if whole else 1 / shards
    padding = _padding(architecture, 1 if whole else shards)
    layers += (parts.experts * expert * padding + parts.expert_biases * plain) * held
    one_copy = server.topology.pipeline_parallel == 1 or architecture.embeddings_everywhere
    embeddings = parts.embedding + (parts.head if one_copy else 0)
    on_rank = share * layers + embeddings * plain / tp
    if server.weight_bytes is None:
        return on_rank
    whole_model = (parts.dense - routers) * dense + parts.experts * expert
    whole_model += (routers + parts.expert_biases + parts.embedding + parts.head) * plain
    shared, routed = architecture.expert_layer_parameters
    whole_model += architecture.draft_layers * ((architecture.attention_parameters + shared) * dense + routed * expert)
    # vLLM serves a float32 checkpoint in half precision.
    return on_rank * (server.weight_bytes * architecture.dtype_bytes / architecture.stored_bytes) / whole_model


def _padding(architecture: Architecture, shards: int) -> float:
    """Return the padded over the true width of a rank's share of an expert."""
    if architecture.expert_bits != MXFP4_BITS:
        return 1.0
    width = architecture.expert_intermediate / shards
    return math.ceil(width / MXFP4_ALIGNMENT) * MXFP4_ALIGNMENT / width


def estimate(architecture: Architecture, server: Server, max_model_len: int) -> Estimate:
    """Return the estimated KV cache of one engine.

    CUDA: KV cache = utilisation x (memory - DRIVER_RESERVE_GIB) - weights - activations - non-torch - CUDA graphs. CPU: each rank takes
    VLLM_CPU_KVCACHE_SPACE (vllm/platforms/cpu.py, _check_and_update), or without it utilisation x memory - weights - the worker's size
    (vllm/v1/worker/cpu_worker.py). Like vLLM, this counts max concurrency x max_model_len tokens.

    Of a model that planning cannot size, only an equal share of the checkpoint is known.
    """
    if architecture.unknown:
        share = None if server.weight_bytes is None else server.weight_bytes / server.topology.engine_size / GIB
        return Estimate(weights_gib=share, max_model_len=max_model_len, not_estimated=architecture.unknown)
    pool = kv_pool(architecture, server, max_model_len)
    weights = rank_weight_bytes(architecture, server) / GIB
    if server.cache_bytes is not None:
        available = server.cache_bytes / GIB
    elif server.accelerator == "cpu":
        available = server.utilisation * server.memory_gib - weights - CPU_PROCESS_GIB
    else:
        available = server.utilisation * (server.memory_gib - DRIVER_RESERVE_GIB) - weights - overhead_gib(architecture, server)
    concurrency = max(0, int(available * GIB) // pool.block_bytes) / pool.request_blocks
    return Estimate(
        weights_gib=weights,
        kv_bytes_per_token=pool.token_bytes,
        kv_cache_gib=available,
        kv_cache_tokens=int(concurrency * max_model_len),
        max_concurrency=concurrency,
        max_model_len=max_model_len,
        state_bytes_per_request=pool.state_bytes,
    )


def overhead_gib(architecture: Architecture, server: Server) -> float:
    """Return the memory of a GPU that holds neither weights nor KV cache: activations, NCCL and CUDA context, CUDA graphs; GiB."""
    activation = ACTIVATION_GIB.get(architecture.model_type, ACTIVATION_GIB["other"])
    return activation + NON_TORCH_GIB[server.topology.engine_size > 1] + CUDA_GRAPH_GIB


def of_options(architecture: Architecture, server: Server, options: Mapping[str, Any], shortest: int) -> Estimate:
    """Return the estimate for the max-model-len of the options, or for the length that vLLM chooses.

    Args:
        shortest: tokens of the longest request that the deployment gets.
    """
    length = whole(options, "max-model-len") or architecture.max_positions or 4096
    # vLLM then takes the longest request that the KV cache holds (config/model.py, max_model_len, 0.32.0).
    if str(options.get("max-model-len")).strip() in ("auto", "-1") and architecture.unknown is None:
        length = longest_fitting(lambda n: (estimate(architecture, server, n).max_concurrency or 0) >= 1, shortest, length)
    return estimate(architecture, server, length)


def longest_fitting(fits: Callable[[int], bool], shortest: int, longest: int) -> int:
    """Return the greatest number of tokens from ``shortest`` to ``longest`` that fits; ``shortest`` if none does.

    Like vLLM (v1/core/kv_cache_utils.py, _auto_fit_max_model_len, 0.25.1 and 0.32.0), this assumes that all smaller numbers fit too.
    """
    if longest <= shortest or fits(longest):
        return max(shortest, longest)
    # bisect finds the first number that does not fit.
    return max(shortest, shortest - 1 + bisect.bisect_left(range(shortest, longest), True, key=lambda tokens: not fits(tokens)))


def require(estimated: Estimate, server: Server) -> None:
    """Raise PlanRefused with needed and available GiB unless one request of max_model_len fits (vLLM: check_enough_kv_cache_memory)."""
    topology, gib = server.topology, server.memory_gib
    weights, cache, concurrency = estimated.weights_gib, estimated.kv_cache_gib, estimated.max_concurrency
    if weights is None or cache is None or concurrency is None:
        return
    shape = f"tp {topology.tensor_parallel} x pp {topology.pipeline_parallel}"
    had = f"{gib:.1f} GiB of each device (utilisation {server.utilisation:g})"
    sizes = "a larger tensor_parallel or pipeline_parallel"
    if cache <= 0:
        what = f"The weights do not fit: {weights:.1f} GiB on each rank at {shape} and vLLM's own memory exceed {had} by {-cache:.1f} GiB."
        do = f"{sizes}, a larger gpu-memory-utilization, quantised weights, larger devices"
    elif server.sharing * (weights + cache) > gib:
        where = "each device has" if server.sharing == 1 else f"{server.sharing} ranks of a node share"
        what = f"Weights and KV cache do not fit: {weights:.1f} + {cache:.1f} GiB on each rank at {shape}, but {where} {gib:.1f} GiB."
        do = f"a smaller kv-cache-memory-bytes (on CPU: {CPU_SPACE}), {sizes}"
    elif concurrency < 1:
        tokens, token_bytes = estimated.kv_cache_tokens or 0, estimated.kv_bytes_per_token or 0
        most = (token_bytes * estimated.max_model_len + estimated.state_bytes_per_request) / GIB
        need = f"{cache / concurrency:.2f} GiB" if concurrency > 0 else f"up to {most:.2f} GiB"
        what = (
            f"One request of {estimated.max_model_len} tokens does not fit: it needs a KV cache of {need}. With {weights:.1f} GiB of "
            f"weights on each rank at {shape}, {cache:.2f} GiB of {had} remain. They hold {tokens} tokens."
        )
        do = f"max-model-len of about {tokens}, {sizes}, a larger gpu-memory-utilization (on CPU: {CPU_SPACE}), an fp8 KV cache"
    else:
        return
    raise PlanRefused(what, do=f"Change the deployment's topology or options. These help: {do}.", reason="does_not_fit")


_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_NUMBER = r"([\d,]+(?:\.\d+)?)"
_LOGGED: dict[str, tuple[Callable[[Iterable[float]], float], str]] = {
    "weights_gib": (max, rf"Model loading took {_NUMBER} GiB"),
    # The second wording: kv-cache-memory-bytes or a persisted start-up plan (v1/worker/gpu_worker.py). The third: on CPU.
    "kv_cache_gib": (min, rf"(?:Available KV cache memory: |, reserved |(?:Explicitly|Auto) set \(){_NUMBER}(?:/[\d,.]+\))? GiB"),
    "kv_cache_tokens": (min, rf"\w+ KV cache size: {_NUMBER} tokens"),
    "max_concurrency": (min, rf"Maximum concurrency for [\d,]+ tokens per request: {_NUMBER}x"),
}
"""The lines of vLLM 0.25.1 and 0.32.0 on GPUs and 0.32.0 on CPU (without the weights), and which rank's or engine's number counts.

vLLM gives every rank as many KV cache blocks as the rank with the least memory.
"""


def observe(log: str) -> dict[str, float]:
    """Return the memory values in a server's log by their name in the estimate."""
    text = _COLOUR.sub("", log)
    found = {name: [float(number.replace(",", "")) for number in re.findall(pattern, text)] for name, (_, pattern) in _LOGGED.items()}
    return {name: _LOGGED[name][0](values) for name, values in found.items() if values}


def compare(estimated: Estimate, observed: dict[str, float]) -> dict[str, float]:
    """Return observed over estimated for every observed value."""
    planned = estimated.model_dump()
    return {name: value / planned[name] for name, value in observed.items() if planned.get(name)}
