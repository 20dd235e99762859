"""An upper bound of the output tokens per second that a deployment's GPUs can give a load (roofline model).

Steady state of continuous batching: in each step every running request gets one token, and prompts are read as fast as requests end. A
step takes at least the time to read its bytes from memory, and at least the time of its arithmetic, both spread evenly over all devices:

* Bytes: the weights, once for each engine and pipeline stage, and each request's KV cache at its mean length (prompt + half of the
  output). Of the experts, only those count that the step's tokens choose, evenly and at random.
* Arithmetic: two operations for each active weight and token (the output head only for output tokens), and attention's two products.
  Mamba and linear attention layers read and write their state once for each request; their own arithmetic counts nothing.

Communication, launch times, sampling and embedding cost nothing here, so real servers stay below. Checked by hand for gpt-oss-120b on one
H200 with 512 requests of 1024 in and 1024 out: 64.0 GB of weights and 31.4 GB of caches in 19.9 ms, 25.8k tokens/s.
Source: S. Williams, A. Waterman, D. Patterson: Roofline, CACM 52 (2009) 65.
"""

from dataclasses import dataclass
from typing import Literal

from servemark.errors import WeightsRefused
from servemark.planning.devices import Device
from servemark.records import Topology
from servemark.weights.architecture import Architecture


@dataclass(frozen=True)
class Bound:
    """``output_tokens_per_s`` of the whole deployment, and the resource that limits it."""

    output_tokens_per_s: float
    limit: Literal["memory", "arithmetic"]


def unbounded(architecture: Architecture) -> str | None:
    """Return why a model has no bound, as a clause; None if it has one."""
    if architecture.unknown:
        return f"the size of the model is unknown ({architecture.unknown})"
    if not architecture.bits_known:
        return f"the bits of a weight with the quantisation {architecture.quantisation!r} are unknown"
    if architecture.latent and architecture.latent.index_width:
        return "sparse attention reads a part of the KV cache"
    return None


@dataclass(frozen=True)
class Load:
    """Requests that are always in flight, in equal shares on the replicas of the deployment.

    Attributes:
        concurrency: requests in flight on the whole deployment.
        input_tokens, output_tokens: of each request, 1 or more, without a prefix that the server reads once for all.
        kv_element_bytes: 1 for an fp8 KV cache; None: of the model's dtype.
    """

    concurrency: float
    input_tokens: int
    output_tokens: int
    kv_element_bytes: int | None = None

    @property
    def length(self) -> float:
        """Mean tokens of a request in the KV cache while it generates."""
        return self.input_tokens + self.output_tokens / 2


def bound(architecture: Architecture, topology: Topology, device: Device, load: Load) -> Bound:
    """Return the bound of a deployment for a load.

    Raises:
        WeightsRefused: planning cannot size the model, or the bits of the quantised weights are unknown.
    """
    if why := unbounded(architecture):
        raise WeightsRefused(f"{why}, so there is no roofline bound.", reason="architecture_unknown")
    # Of one replica; all are alike.
    requests = load.concurrency / topology.replicas
    step = _Step(requests, requests * load.input_tokens / load.output_tokens, load.length, load.input_tokens)
    memory_s, arithmetic_s = _seconds(architecture, topology, device, step, load.kv_element_bytes)
    return Bound(load.concurrency / max(memory_s, arithmetic_s), "memory" if memory_s >= arithmetic_s else "arithmetic")


@dataclass(frozen=True)
class Latencies:
    """The least latencies of a request in milliseconds, by the same model: no server is faster."""

    ttft_ms: float
    tpot_ms: float
    e2el_ms: float


def least_latencies(architecture: Architecture, topology: Topology, device: Device, load: Load) -> Latencies:
    """Return lower bounds of the latencies; arguments and errors as of :func:`bound`.

    * Time to first token: the replica reads one prompt and does nothing else.
    * Time per output token: a step in which every request in flight gets a token and no prompt is read.
    * End to end: the first token, and one such step for each further token.
    """
    if why := unbounded(architecture):
        raise WeightsRefused(f"{why}, so there is no roofline bound.", reason="architecture_unknown")
    first = _Step(1, load.input_tokens, 0, load.input_tokens)
    further = _Step(load.concurrency / topology.replicas, 0, load.length, load.input_tokens)
    ttft, tpot = (1000 * max(_seconds(architecture, topology, device, step, load.kv_element_bytes)) for step in (first, further))
    return Latencies(ttft, tpot, ttft + (load.output_tokens - 1) * tpot)


@dataclass(frozen=True)
class _Step:
    """The work of one replica's step: a token for each of ``requests`` with ``length`` tokens in the cache, and ``prompts`` tokens read.

    Attributes:
        input_tokens: tokens of the whole prompt to which a token that is read belongs.
    """

    requests: float
    prompts: float
    length: float
    input_tokens: int


def _seconds(
    architecture: Architecture, topology: Topology, device: Device, step: _Step, kv_element_bytes: int | None
) -> tuple[float, float]:
    """Return the least seconds of a replica's step: (of its memory, of its arithmetic)."""
    parts, requests, prompts, input_tokens = architecture.parameters(), step.requests, step.prompts, step.input_tokens
    head = parts.head or parts.embedding
    expert_share = architecture.experts_per_token / architecture.experts if architecture.moe else 0.0
    # Each pipeline stage has its own batch in flight, with its share of the requests, and reads the weights for it.
    touched = 1 - (1 - expert_share) ** ((requests + prompts) / topology.pipeline_parallel)
    dense = parts.dense * architecture.weight_bits / 8 + head * architecture.dtype_bytes
    experts = parts.experts * architecture.expert_bits / 8 * touched
    # Tensor parallel ranks share one copy of the weights; data parallel ones share the experts only.
    weights = topology.pipeline_parallel * (topology.data_parallel * dense + experts)
    windows = [window for layer, window in enumerate(architecture.windows) if layer not in architecture.kinds.attention_free]
    seen = sum(min(window or step.length, step.length) for window in windows)
    # Each tensor parallel rank reads a whole latent vector.
    copies = topology.tensor_parallel if architecture.latent else 1
    cache = architecture.token_bytes(1, kv_element_bytes) * seen * copies
    if architecture.state:
        cache += 2 * len(architecture.kinds.stateful) * architecture.state.rank_bytes(1, architecture.dtype_bytes)
    active = parts.dense + parts.experts * expert_share
    decoding, reading = architecture.attention_operations
    made = 2 * (active + head) + decoding * seen
    # Attention of a prompt's token covers half of the prompt on average.
    read = 2 * active + reading * sum(min(window or input_tokens, input_tokens / 2) for window in windows)
    speed = device.operations_per_s(architecture.arithmetic_bits)
    memory_s = (weights + requests * cache) / device.bytes_per_s / topology.replica_size
    return memory_s, (requests * made + prompts * read) / speed / topology.replica_size
