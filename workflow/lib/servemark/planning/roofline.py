"""An upper bound of the output tokens per second that a deployment's GPUs can give a load (roofline model).

Steady state of continuous batching: in each step every running request gets one token, and prompts are read as fast as requests end. A
step takes at least the time to read its bytes from memory, and at least the time of its arithmetic, both spread evenly over all devices:

* Bytes: the weights, once for each engine and pipeline stage, and each request's KV cache at its mean length (prompt + half of the
  output). Of the experts, only those count that the step's tokens choose, evenly and at random.
* Arithmetic: two operations for each active weight and token (the output head only for output tokens), and attention's two products.

Communication, launch times, sampling and embedding cost nothing here, so real servers stay below. Checked by hand for gpt-oss-120b on one
H200 with 512 requests of 1024 in and 1024 out: 64.0 GB of weights and 31.4 GB of caches in 19.9 ms, 25.8k tokens/s.
Source: S. Williams, A. Waterman, D. Patterson: Roofline, CACM 52 (2009) 65.
"""

from dataclasses import dataclass
from typing import Literal

from servemark.errors import WeightsRefused
from servemark.records import Topology
from servemark.weights.architecture import Architecture


@dataclass(frozen=True)
class Device:
    """Peaks of one GPU: bytes/s of its memory, dense operations/s in 16 bits, and the factor for 8-bit floats."""

    bytes_per_s: float
    operations_per_s: float
    float8_factor: float


_HOPPER, _AMPERE = (989.4e12, 2.0), (312e12, 1.0)
DEVICES = {
    "NVIDIA A100-SXM4-40GB": Device(1.555e12, *_AMPERE),
    "NVIDIA A100-SXM4-80GB": Device(2.039e12, *_AMPERE),
    "NVIDIA H100 80GB HBM3": Device(3.35e12, *_HOPPER),
    "NVIDIA GH200 480GB": Device(4.0e12, *_HOPPER),
    "NVIDIA GH200 144G HBM3e": Device(4.9e12, *_HOPPER),
    "NVIDIA H200": Device(4.8e12, *_HOPPER),
}
"""Peaks by nvidia-smi's name of the GPU. Source: NVIDIA's data sheets, numbers without sparsity."""


@dataclass(frozen=True)
class Bound:
    """``output_tokens_per_s`` of the whole deployment, and the resource that limits it."""

    output_tokens_per_s: float
    limit: Literal["memory", "arithmetic"]


def bound(
    architecture: Architecture,
    topology: Topology,
    device: Device,
    *,
    concurrency: float,
    input_tokens: int,
    output_tokens: int,
    kv_element_bytes: int | None = None,
) -> Bound:
    """Return the bound for ``concurrency`` requests always in flight, in equal shares on the replicas of the deployment.

    ``input_tokens``, ``output_tokens``: of each request, 1 or more, without a prefix that the server reads once for all.
    ``kv_element_bytes``: 1 for an fp8 KV cache; default of the model's dtype. WeightsRefused: the width of the MLPs or the bits of the
    quantised weights are unknown.
    """
    if not architecture.bits_known:
        raise WeightsRefused(
            f"the bits of a weight with the quantisation {architecture.quantisation!r} are unknown, so there is no roofline bound.",
            reason="architecture_unknown",
        )
    parts = architecture.parameters()
    # Of one replica; all are alike.
    requests = concurrency / topology.replicas
    prompts = requests * input_tokens / output_tokens
    head = parts.head or parts.embedding
    expert_share = architecture.experts_per_token / architecture.experts if architecture.moe else 0.0
    # Each pipeline stage has its own batch in flight, with its share of the requests, and reads the weights for it.
    touched = 1 - (1 - expert_share) ** ((requests + prompts) / topology.pipeline_parallel)
    dense = parts.dense * architecture.weight_bits / 8 + head * architecture.dtype_bytes
    experts = parts.experts * architecture.expert_bits / 8 * touched
    # Tensor parallel ranks share one copy of the weights; data parallel ones share the experts only.
    weights = topology.pipeline_parallel * (topology.data_parallel * dense + experts)
    length = input_tokens + output_tokens / 2
    seen = [min(window or length, length) for window in architecture.windows]
    element = kv_element_bytes or architecture.dtype_bytes
    cache = 2 * architecture.kv_heads * architecture.head_dim * element * sum(seen)
    active = parts.dense + parts.experts * expert_share
    attention = 4 * architecture.heads * architecture.head_dim
    made = 2 * (active + head) + attention * sum(seen)
    # Attention of a prompt's token covers half of the prompt on average.
    read = 2 * active + attention * sum(min(window or input_tokens, input_tokens / 2) for window in architecture.windows)
    speed = device.operations_per_s * (device.float8_factor if architecture.float8_arithmetic else 1.0)
    memory_s = (weights + requests * cache) / device.bytes_per_s / topology.replica_size
    arithmetic_s = (requests * made + prompts * read) / speed / topology.replica_size
    return Bound(concurrency / max(memory_s, arithmetic_s), "memory" if memory_s >= arithmetic_s else "arithmetic")
