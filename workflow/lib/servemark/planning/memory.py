"""How much memory a deployment needs and what its KV cache holds, by vLLM's own rules.

GiB are 2**30 bytes throughout; "rank" is one device's worker, "engine" the tp x pp ranks that share one scheduler.
"""

from __future__ import annotations

import bisect
import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from servemark.errors import PlanRefused
from servemark.planning.legality import stage_layers
from servemark.records import Estimate, Topology
from servemark.weights.architecture import Architecture
from servemark.weights.quantisation import MXFP4_BITS

GIB = 2**30

BLOCK_TOKENS = {"cuda": 16, "cpu": 128}
"""Tokens of one KV cache block: vllm/config/cache.py DEFAULT_BLOCK_SIZE and vllm/platforms/cpu.py (0.32.0)."""

MXFP4_ALIGNMENT = 64
"""An mxfp4 expert's width on one rank is padded to this multiple: vllm fused_moe/oracle/mxfp4.py,
mxfp4_round_up_hidden_size_and_intermediate_size, the Triton kernels that Hopper gets by default."""

DRIVER_RESERVE_GIB = 0.6
"""What nvidia-smi counts as memory and CUDA never hands out, on an H200: 143,771 MiB against 139.8 GiB."""

ACTIVATION_GIB = {"llama": 1.9, "qwen3": 2.2, "qwen3_moe": 2.2, "gpt_oss": 2.87}
"""Peak activations of vLLM's profiling run, whatever tp is. Source: llm-d-planner, vllm-v0.19.0-accuracy-report (49
runs of 28 models on H100)."""

DEFAULT_ACTIVATION_GIB = 2.2

NON_TORCH_GIB = (0.27, 2.1)
"""CUDA context and, with tp * pp >= 2, NCCL buffers. Source as ACTIVATION_GIB."""

CUDA_GRAPH_GIB = 1.0
"""What vLLM sets aside for CUDA graphs since 0.21; 0.64 to 2.86 GiB in the recorded H200 logs, by number of graphs."""

CPU_PROCESS_GIB = 0.54
"""Resident size of a CPU worker without weights; vLLM 0.32.0 logs it as "consumed by non-kv usages"."""


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
    """Layers by block table: those of a group share one, groups draw blocks from one pool.

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


def kv_pool(
    architecture: Architecture,
    topology: Topology,
    max_model_len: int,
    block_tokens: int,
    batched_tokens: int,
    kv_element_bytes: int | None = None,
    layers_of_stages: tuple[int, ...] | None = None,
) -> Pool:
    """Block size in bytes and blocks per request.

    Sources, vLLM 0.32.0: bytes per block kv_cache_utils.py _get_kv_cache_bytes_per_block; a sliding-window layer holds
    the window less one, the tokens in flight and one more block, kv_cache_interface.py SlidingWindowSpec; KV heads per
    rank config/model.py get_num_kv_heads. A block holds keys and values, hence the 2.
    """
    heads = max(1, architecture.kv_heads // topology.tensor_parallel)
    layer_token = 2 * heads * architecture.head_dim * (kv_element_bytes or architecture.dtype_bytes)
    stages = layers_of_stages or stage_layers(architecture.layers, topology.pipeline_parallel)
    starts = [sum(stages[:stage]) for stage in range(len(stages))]
    groups = layer_groups(architecture.windows)
    largest_group = max(
        sum(start <= layer < start + size for layer in group)
        for start, size in zip(starts, stages, strict=True)
        for group in groups
    )
    blocks = 0
    for group in groups:
        window = architecture.windows[group[0]]
        if window is None:
            blocks += math.ceil(max_model_len / block_tokens)
        else:
            blocks += math.ceil(min(window - 1 + batched_tokens, max_model_len) / block_tokens) + 1
    return Pool(
        block_bytes=largest_group * layer_token * block_tokens,
        request_blocks=blocks,
        token_bytes=max(stages) * layer_token,
    )


def rank_weight_bytes(
    architecture: Architecture,
    weight_bytes: int | None,
    topology: Topology,
    layers_of_stages: tuple[int, ...] | None = None,
    *,
    spread: bool = False,
) -> float:
    """Bytes of the weights on the fullest rank. ``spread``: ranks have whole experts (enable-expert-parallel), none is cut.

    The shape gives each part's share (layers over stages, heads and widths over tp, experts over tp * dp, routers not
    split); ``weight_bytes``, the checkpoint's tensor bytes, then corrects the sum for what the shape does not show.
    Against recorded gpt-oss-120b servers: within 1.1 %; what is missing is padding inside the quantised kernels.
    """
    parts = architecture.parameters()
    stages = layers_of_stages or stage_layers(architecture.layers, topology.pipeline_parallel)
    tp, shards = topology.tensor_parallel, topology.tensor_parallel * topology.data_parallel
    dense = architecture.weight_bits / 8
    expert = architecture.expert_bits / 8
    plain = architecture.dtype_bytes
    routers = architecture.expert_layers * architecture.hidden * architecture.experts
    share = max(stages) / architecture.layers
    layers = (parts.dense - routers) * dense / tp + routers * plain
    if spread and architecture.moe:
        held = math.ceil(architecture.experts / shards) / architecture.experts
        padding = _padding(architecture, 1)
    else:
        held, padding = 1 / shards, _padding(architecture, shards)
    layers += (parts.experts * expert * padding + parts.expert_biases * plain) * held
    if topology.pipeline_parallel == 1 or architecture.embeddings_everywhere:
        embeddings = parts.embedding + parts.head
    else:
        embeddings = parts.embedding
    on_rank = share * layers + embeddings * plain / tp
    if weight_bytes is None:
        return on_rank
    whole = (parts.dense - routers) * dense + parts.experts * expert
    whole += (routers + parts.expert_biases + parts.embedding + parts.head) * plain
    # A float32 checkpoint is served in half precision.
    return on_rank * (weight_bytes * architecture.dtype_bytes / architecture.stored_bytes) / whole


def _padding(architecture: Architecture, shards: int) -> float:
    """Padded over true width of one rank's share of an expert."""
    if architecture.expert_bits != MXFP4_BITS:
        return 1.0
    width = architecture.expert_intermediate / shards
    return math.ceil(width / MXFP4_ALIGNMENT) * MXFP4_ALIGNMENT / width


def estimate(
    architecture: Architecture,
    weight_bytes: int | None,
    topology: Topology,
    max_model_len: int,
    memory_gib_per_device: float,
    utilisation: float,
    kv_cache_bytes_override: int | None = None,
    accelerator: Literal["cpu", "cuda"] = "cuda",
    block_tokens: int | None = None,
    batched_tokens: int | None = None,
    kv_element_bytes: int | None = None,
    layers_of_stages: tuple[int, ...] | None = None,
    *,
    spread: bool = False,
) -> Estimate:
    """What one engine's KV cache will hold, before it is started.

    CUDA: KV cache = utilisation x (memory - DRIVER_RESERVE_GIB) - weights - activations - non-torch - CUDA graphs; the
    constants' sources stand beside them. CPU: every rank takes VLLM_CPU_KVCACHE_SPACE GiB for itself
    (vllm/platforms/cpu.py, _check_and_update; give it as ``kv_cache_bytes_override``); without it utilisation x memory
    less the worker's own size (vllm/v1/worker/cpu_worker.py). Blocks are counted as in ``kv_pool``, tokens as vLLM logs
    them: max concurrency x max_model_len.

    Args:
        weight_bytes: the checkpoint's tensor bytes (Manifest.weight_bytes); None when there are none (dummy weights).
        memory_gib_per_device: as nvidia-smi states it for CUDA; the memory node's total for CPU.
        utilisation: gpu-memory-utilization; vLLM's default is 0.92 (0.25.1, 0.32.0), 0.9 before.
        kv_cache_bytes_override: bytes per rank that an option or variable fixes.
        block_tokens: block-size, when set.
        batched_tokens: tokens in flight that sliding-window layers hold beside their window: max-num-batched-tokens.
            Default 8192 for devices of 70 GiB or more, else 2048 (engine/arg_utils.py); for CPU 2048 x tp x pp. From
            0.32 vLLM counts it once more with asynchronous scheduling.
        kv_element_bytes: 1 for an fp8 KV cache; default as the model's dtype.
        layers_of_stages: layers of each pipeline stage, when vLLM's own split does not hold.
        spread: ranks have whole experts.
    """
    ranks = topology.tensor_parallel * topology.pipeline_parallel
    if batched_tokens is None:
        large = accelerator == "cuda" and memory_gib_per_device >= 70
        batched_tokens = 2048 * ranks if accelerator == "cpu" else 8192 if large else 2048
    pool = kv_pool(
        architecture,
        topology,
        max_model_len,
        block_tokens or BLOCK_TOKENS[accelerator],
        batched_tokens,
        kv_element_bytes,
        layers_of_stages,
    )
    weights = rank_weight_bytes(architecture, weight_bytes, topology, layers_of_stages, spread=spread) / GIB
    if kv_cache_bytes_override is not None:
        available = kv_cache_bytes_override / GIB
    elif accelerator == "cpu":
        available = utilisation * memory_gib_per_device - weights - CPU_PROCESS_GIB
    else:
        activation = ACTIVATION_GIB.get(architecture.model_type, DEFAULT_ACTIVATION_GIB)
        overhead = activation + NON_TORCH_GIB[ranks > 1] + CUDA_GRAPH_GIB
        available = utilisation * (memory_gib_per_device - DRIVER_RESERVE_GIB) - weights - overhead
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
    """The greatest number of tokens from ``shortest`` to ``longest`` that fits, as vLLM looks for it; ``shortest`` when none does.

    Source: vllm/v1/core/kv_cache_utils.py, _auto_fit_max_model_len (0.25.1 and 0.32.0). What fits is taken for monotonous.
    """
    if longest <= shortest or fits(longest):
        return max(shortest, longest)
    # bisect finds the first that does not fit.
    return max(
        shortest, shortest - 1 + bisect.bisect_left(range(shortest, longest), True, key=lambda tokens: not fits(tokens))
    )


def refusals(
    estimated: Estimate,
    topology: Topology,
    memory_gib_per_device: float,
    utilisation: float,
    sharing: int = 1,
) -> tuple[str, ...]:
    """Why the deployment cannot start, with GiB needed and had and the ways out; empty when it fits.

    ``sharing`` is how many ranks take their weights and caches out of the same memory: 1 for devices with their own.

    vLLM refuses to start when one request of max_model_len does not fit
    (kv_cache_utils.py, check_enough_kv_cache_memory).
    """
    shape = f"tp {topology.tensor_parallel} x pp {topology.pipeline_parallel}"
    had = f"{memory_gib_per_device:.1f} GiB a device (utilisation {utilisation:g})"
    if estimated.kv_cache_gib <= 0:
        return (
            f"The weights do not fit: {estimated.weights_gib:.1f} GiB a rank at {shape}, which with what vLLM "
            f"itself needs is {-estimated.kv_cache_gib:.1f} GiB more than there is of {had}. Ways out: a larger "
            "tensor_parallel or pipeline_parallel, a larger gpu-memory-utilization, quantised weights, larger devices.",
        )
    if sharing * (estimated.weights_gib + estimated.kv_cache_gib) > memory_gib_per_device:
        where = "a device" if sharing == 1 else f"that {sharing} ranks of a node share"
        return (
            f"Weights and KV cache do not fit: {estimated.weights_gib:.1f} + {estimated.kv_cache_gib:.1f} GiB a rank "
            f"at {shape}, of {memory_gib_per_device:.1f} GiB {where}. Ways out: a smaller kv-cache-memory-bytes (on "
            "CPU: VLLM_CPU_KVCACHE_SPACE), a larger tensor_parallel or pipeline_parallel.",
        )
    if estimated.max_concurrency < 1:
        tokens = estimated.kv_cache_tokens
        if estimated.max_concurrency > 0:
            need = f"{estimated.kv_cache_gib / estimated.max_concurrency:.2f} GiB"
        else:
            need = f"up to {estimated.kv_bytes_per_token * estimated.max_model_len / GIB:.2f} GiB"
        return (
            f"One request of {estimated.max_model_len} tokens does not fit: beside {estimated.weights_gib:.1f} GiB of "
            f"weights a rank at {shape}, {estimated.kv_cache_gib:.2f} GiB of {had} are left for the KV cache and "
            f"{need} are needed; it holds {tokens} tokens. Ways out: max-model-len of about {tokens}, a larger "
            "tensor_parallel or pipeline_parallel, a larger gpu-memory-utilization (on CPU: VLLM_CPU_KVCACHE_SPACE), "
            "an fp8 KV cache.",
        )
    return ()


def require(
    estimated: Estimate,
    topology: Topology,
    memory_gib_per_device: float,
    utilisation: float,
    sharing: int = 1,
) -> None:
    """Raise what ``refusals`` finds.

    Raises:
        PlanRefused: the deployment does not fit.
    """
    if found := refusals(estimated, topology, memory_gib_per_device, utilisation, sharing):
        raise PlanRefused(
            "\n".join(found), do="Change the deployment's topology or options as said.", reason="does_not_fit"
        )
