"""The most output tokens per second that a deployment's GPUs could give a load: a bound, not a forecast.

Steady state of continuous batching. In each step every running request makes one token, and prompts are read at the rate at which
requests end. The step takes at least the time in which the memory gives what it has to read, and at least the time in which the
arithmetic units do their work, both spread evenly over all devices:

* read: every weight once for each engine and pipeline stage in turn, of the experts those that the step's tokens choose (evenly, at
  random), and each request's KV cache at its mean length, prompt + half of the answer;
* arithmetic: two operations for each active weight and token (the output head only for made tokens), and attention's two products.

Communication, launch times, sampling and the embedding's look-up cost nothing here, so nothing real reaches it. Checked by hand against
gpt-oss-120b on one H200 with 512 requests of 1024 in and 1024 out: 64.0 GB of weights and 31.4 GB of caches in 19.9 ms, 25.8k tokens/s.
S. Williams, A. Waterman, D. Patterson: Roofline, CACM 52 (2009) 65.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from servemark.errors import WeightsRefused
from servemark.records import Topology
from servemark.weights.architecture import Architecture


@dataclass(frozen=True)
class Device:
    """Peaks of one GPU: bytes/s of its memory, dense operations/s in 16 bits, and how many times as many in 8-bit floats."""

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
"""By the name that nvidia-smi gives. Source: NVIDIA's data sheets of these products, figures without sparsity."""


@dataclass(frozen=True)
class Bound:
    """``output_tokens_per_s`` of the whole deployment, and what sets it."""

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
    """Return the bound for ``concurrency`` requests that are always in flight, spread evenly over the replicas of the deployment.

    Tokens are those of each request, at least one of each. A beginning that all prompts share and the server keeps is left out: read once,
    it costs next to nothing. ``kv_element_bytes``: 1 for an fp8 KV cache; default as the model's dtype. WeightsRefused: the width of the
    MLPs or the bits of the quantised weights are not known.
    """
    if not architecture.bits_known:
        raise WeightsRefused(
            f"how many bits a weight has by the quantisation {architecture.quantisation!r} is not read from its config.json, so no "
            "bound is worked out.",
            reason="architecture_unknown",
        )
    parts = architecture.parameters()
    # One replica with its share of the requests; all replicas are alike.
    requests = concurrency / topology.replicas
    prompts = requests * input_tokens / output_tokens
    head = parts.head or parts.embedding
    expert_share = architecture.experts_per_token / architecture.experts if architecture.moe else 0.0
    # With pipeline stages as many batches are in flight, each with its share of the requests, and each is read for by itself.
    touched = 1 - (1 - expert_share) ** ((requests + prompts) / topology.pipeline_parallel)
    dense = parts.dense * architecture.weight_bits / 8 + head * architecture.dtype_bytes
    experts = parts.experts * architecture.expert_bits / 8 * touched
    # Tensor parallel ranks share one copy of the weights, data parallel ones have each their own but for the experts.
    weights = topology.pipeline_parallel * (topology.data_parallel * dense + experts)
    length = input_tokens + output_tokens / 2
    seen = [min(window or length, length) for window in architecture.windows]
    element = kv_element_bytes or architecture.dtype_bytes
    cache = 2 * architecture.kv_heads * architecture.head_dim * element * sum(seen)
    active = parts.dense + parts.experts * expert_share
    attention = 4 * architecture.heads * architecture.head_dim
    made = 2 * (active + head) + attention * sum(seen)
    # A prompt's token sees on average half of the prompt.
    read = 2 * active + attention * sum(min(window or input_tokens, input_tokens / 2) for window in architecture.windows)
    speed = device.operations_per_s * (device.float8_factor if architecture.float8_arithmetic else 1.0)
    memory_s = (weights + requests * cache) / device.bytes_per_s / topology.replica_size
    arithmetic_s = (requests * made + prompts * read) / speed / topology.replica_size
    return Bound(concurrency / max(memory_s, arithmetic_s), "memory" if memory_s >= arithmetic_s else "arithmetic")
