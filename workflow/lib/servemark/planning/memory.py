"""How much memory a deployment needs and what its KV cache holds, by vLLM's own rules.

GiB are 2**30 bytes throughout; "rank" is one device's worker, "engine" the tp x pp ranks that share one scheduler.
"""

from __future__ import annotations

import bisect
import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from servemark.errors import PlanRefused
from servemark.planning.advice_data import measured
from servemark.planning.server import CPU_SPACE, GIB, Server
from servemark.records import Estimate
from servemark.weights.architecture import Architecture
from servemark.weights.quantisation import MXFP4_BITS

BLOCK_TOKENS = {"cuda": 16, "cpu": 128}
"""Tokens of one KV cache block: vllm/config/cache.py DEFAULT_BLOCK_SIZE and vllm/platforms/cpu.py (0.32.0)."""

MXFP4_ALIGNMENT = 64
"""An mxfp4 expert's width on one rank is padded to this multiple: vllm fused_moe/oracle/mxfp4.py,
mxfp4_round_up_hidden_size_and_intermediate_size, the Triton kernels that Hopper gets by default."""

DRIVER_RESERVE_GIB = measured("driver_reserve")
"""What nvidia-smi counts as memory and CUDA never hands out."""

ACTIVATION_GIB = {kind: measured(f"activations_{kind}") for kind in ("llama", "gpt_oss", "other")}
"""Peak activations of vLLM's profiling run by kind of model, whatever the tensor parallel size."""

NON_TORCH_GIB = (measured("non_torch_one_rank"), measured("non_torch_more_ranks"))
"""CUDA context and, with tp * pp >= 2, NCCL buffers."""

CUDA_GRAPH_GIB = measured("cuda_graphs")
"""What vLLM sets aside for CUDA graphs since 0.21."""

CPU_PROCESS_GIB = measured("cpu_process")
"""Resident size of a CPU worker without weights."""


@dataclass(frozen=True)
class Pool:
    """The KV cache of one rank in vLLM's terms.

    Attributes:
        block_bytes: bytes of one block over the layers of the largest group of the largest stage.
        request_blocks: blocks that one request of max_model_len needs.
        token_bytes: bytes of one token over all layers of the largest stage, were all attention full.
    """

    block_bytes: int
    request_blocks: int
    token_bytes: int


def layer_groups(windows: tuple[int | None, ...]) -> list[list[int]]:
    """Return layers by block table: those of a group share one, groups draw blocks from one pool.

    Source: vllm/v1/core/kv_cache_utils.py, _get_kv_cache_groups_uniform_page_size (0.32.0): groups are as large as the
    rarer kind of layer, or as the commoner one when it has less than 1.5 times as many layers.
    """
    buckets: defaultdict[int | None, list[int]] = defaultdict(list)
    for layer, window in enumerate(windows):
        buckets[window].append(layer)
    sizes = [len(layers) for layers in buckets.values()]
    size = max(sizes) if max(sizes) < 1.5 * min(sizes) else min(sizes)
    groups = []
    for layers in buckets.values():
        count = math.ceil(len(layers) / size)
        groups += [layers[start::count] for start in range(count)]
    return groups


def kv_pool(architecture: Architecture, server: Server, max_model_len: int) -> Pool:
    """Return block size in bytes and blocks per request.

    Sources, vLLM 0.32.0: bytes per block kv_cache_utils.py _get_kv_cache_bytes_per_block; a sliding-window layer holds
    the window less one, the tokens in flight and one more block, kv_cache_interface.py SlidingWindowSpec; KV heads per
    rank config/model.py get_num_kv_heads. A block holds keys and values, hence the 2.
    """
    heads = max(1, architecture.kv_heads // server.topology.tensor_parallel)
    layer_token = 2 * heads * architecture.head_dim * (server.element_bytes or architecture.dtype_bytes)
    block_tokens = server.block_tokens or BLOCK_TOKENS[server.accelerator]
    starts = [sum(server.stages[:stage]) for stage in range(len(server.stages))]
    groups = layer_groups(architecture.windows)
    largest_group = max(
        sum(start <= layer < start + size for layer in group) for start, size in zip(starts, server.stages, strict=True) for group in groups
    )
    blocks = 0
    for window in (architecture.windows[group[0]] for group in groups):
        tokens = max_model_len if window is None else min(window - 1 + server.batched_tokens, max_model_len)
        blocks += math.ceil(tokens / block_tokens) + (window is not None)
    return Pool(block_bytes=largest_group * layer_token * block_tokens, request_blocks=blocks, token_bytes=max(server.stages) * layer_token)


def rank_weight_bytes(architecture: Architecture, server: Server) -> float:
    """Return the bytes of the weights on the fullest rank.

    The shape gives each part's share (layers over stages, heads and widths over tp, experts over tp * dp, routers not
    split); the checkpoint's tensor bytes then correct the sum for what the shape does not show. Padding inside quantised
    kernels is missing; a test compares with recorded servers.
    """
    parts = architecture.parameters()
    tp, shards = server.topology.tensor_parallel, server.topology.tensor_parallel * server.topology.data_parallel
    dense, expert, plain = architecture.weight_bits / 8, architecture.expert_bits / 8, architecture.dtype_bytes
    routers = architecture.expert_layers * architecture.hidden * architecture.experts
    share = max(server.stages) / architecture.layers
    layers = (parts.dense - routers) * dense / tp + routers * plain
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
    # A float32 checkpoint is served in half precision.
    return on_rank * (server.weight_bytes * architecture.dtype_bytes / architecture.stored_bytes) / whole_model


def _padding(architecture: Architecture, shards: int) -> float:
    """Return padded over true width of one rank's share of an expert."""
    if architecture.expert_bits != MXFP4_BITS:
        return 1.0
    width = architecture.expert_intermediate / shards
    return math.ceil(width / MXFP4_ALIGNMENT) * MXFP4_ALIGNMENT / width


def estimate(architecture: Architecture, server: Server, max_model_len: int) -> Estimate:
    """Return what one engine's KV cache will hold, before it is started.

    CUDA: KV cache = utilisation x (memory - DRIVER_RESERVE_GIB) - weights - activations - non-torch - CUDA graphs. CPU: every rank
    takes what VLLM_CPU_KVCACHE_SPACE states (vllm/platforms/cpu.py, _check_and_update); without it utilisation x memory less the
    worker's own size (vllm/v1/worker/cpu_worker.py). Blocks are counted as in ``kv_pool``, tokens as vLLM logs them: max concurrency x
    max_model_len.
    """
    pool = kv_pool(architecture, server, max_model_len)
    weights = rank_weight_bytes(architecture, server) / GIB
    if server.cache_bytes is not None:
        available = server.cache_bytes / GIB
    elif server.accelerator == "cpu":
        available = server.utilisation * server.memory_gib - weights - CPU_PROCESS_GIB
    else:
        activation = ACTIVATION_GIB.get(architecture.model_type, ACTIVATION_GIB["other"])
        overhead = activation + NON_TORCH_GIB[server.topology.engine_size > 1] + CUDA_GRAPH_GIB
        available = server.utilisation * (server.memory_gib - DRIVER_RESERVE_GIB) - weights - overhead
    concurrency = max(0, int(available * GIB) // pool.block_bytes) / pool.request_blocks
    return Estimate(
        weights_gib=weights,
        kv_bytes_per_token=pool.token_bytes,
        kv_cache_gib=available,
        kv_cache_tokens=int(concurrency * max_model_len),
        max_concurrency=concurrency,
        max_model_len=max_model_len,
    )


def longest_fitting(fits: Callable[[int], bool], shortest: int, longest: int) -> int:
    """Return the greatest number of tokens from ``shortest`` to ``longest`` that fits, as vLLM looks for it; ``shortest`` when none does.

    Source: vllm/v1/core/kv_cache_utils.py, _auto_fit_max_model_len (0.25.1 and 0.32.0). What fits is taken for monotonous.
    """
    if longest <= shortest or fits(longest):
        return max(shortest, longest)
    # bisect finds the first that does not fit.
    return max(shortest, shortest - 1 + bisect.bisect_left(range(shortest, longest), True, key=lambda tokens: not fits(tokens)))


def require(estimated: Estimate, server: Server) -> None:
    """Raise PlanRefused, with GiB needed and had, unless one request of max_model_len fits (vLLM: check_enough_kv_cache_memory)."""
    topology, gib = server.topology, server.memory_gib
    shape = f"tp {topology.tensor_parallel} x pp {topology.pipeline_parallel}"
    had = f"{gib:.1f} GiB a device (utilisation {server.utilisation:g})"
    weights, cache = estimated.weights_gib, estimated.kv_cache_gib
    sizes = "a larger tensor_parallel or pipeline_parallel"
    if cache <= 0:
        what = (
            f"The weights do not fit: {weights:.1f} GiB a rank at {shape}, which with what vLLM itself needs is {-cache:.1f} GiB more than "
            f"there is of {had}."
        )
        do = f"{sizes}, a larger gpu-memory-utilization, quantised weights, larger devices"
    elif server.sharing * (weights + cache) > gib:
        where = "a device" if server.sharing == 1 else f"that {server.sharing} ranks of a node share"
        what = f"Weights and KV cache do not fit: {weights:.1f} + {cache:.1f} GiB a rank at {shape}, of {gib:.1f} GiB {where}."
        do = f"a smaller kv-cache-memory-bytes (on CPU: {CPU_SPACE}), {sizes}"
    elif estimated.max_concurrency < 1:
        tokens, most = estimated.kv_cache_tokens, estimated.kv_bytes_per_token * estimated.max_model_len / GIB
        need = f"{cache / estimated.max_concurrency:.2f} GiB" if estimated.max_concurrency > 0 else f"up to {most:.2f} GiB"
        what = (
            f"One request of {estimated.max_model_len} tokens does not fit: beside {weights:.1f} GiB of weights a rank at {shape}, "
            f"{cache:.2f} GiB of {had} are left for the KV cache and {need} are needed; it holds {tokens} tokens."
        )
        do = f"max-model-len of about {tokens}, {sizes}, a larger gpu-memory-utilization (on CPU: {CPU_SPACE}), an fp8 KV cache"
    else:
        return
    raise PlanRefused(what, do=f"Change the deployment's topology or options. What helps: {do}.", reason="does_not_fit")
