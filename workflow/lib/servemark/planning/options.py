"""Options and variables of `vllm serve` as vLLM reads them: numbers, switches, lengths of requests, settings of the memory."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from servemark.errors import PlanRefused
from servemark.records import Hardware, LoadPoint, Topology
from servemark.weights.states import ELEMENT_BYTES

DEFAULT_UTILISATION = 0.92
"""vLLM's default for gpu-memory-utilization (0.25.1, 0.32.0)."""

GIB = 2**30
CPU_SPACE = "VLLM_CPU_KVCACHE_SPACE"
EXPERT_PARALLEL = "enable-expert-parallel"


def whole(options: Mapping[str, Any], name: str) -> int | None:
    """Return an option's whole number ("16k" is 16,000, "16K" is 16,384), or None if vLLM chooses it; raise PlanRefused for other text.

    Source: vllm/utils/argparse_utils.py, human_readable_int and human_readable_int_or_auto (0.32.0).
    """
    text = str(options.get(name)).strip()
    if text in ("None", "auto", "-1"):
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+(?=[kmgt]))?)([kmgt]?)", text, re.IGNORECASE)
    if found is None or ("." in text and not text.islower()):
        raise _no_number(name, text)
    base, power = (1000 if text.islower() else 1024), " kmgt".index(found[2].lower() or " ")
    return int(float(found[1]) * base**power)


def number(name: str, value: object) -> float:
    """Return the number in an option or variable; raise PlanRefused for other text."""
    try:
        return float(str(value))
    except ValueError:
        raise _no_number(name, value) from None


def count(options: Mapping[str, Any], name: str) -> int | None:
    """Return an option's number of 1 or more; None for anything else, which other checks judge."""
    text = str(options.get(name)).strip()
    return int(text) if text.isdecimal() and int(text) else None


def max_num_seqs(options: Mapping[str, Any], topology: Topology, hardware: Hardware) -> int:
    """Return the requests that an engine runs at a time: the option, or vLLM's default for `vllm serve`.

    The default depends on the memory of the GPU, except for A100s of 80 GB; on CPU it is 128 for each rank of the engine. Source:
    vllm/engine/arg_utils.py, get_batch_defaults and _set_default_max_num_seqs_and_batched_tokens_args (0.32.0).
    """
    if given := count(options, "max-num-seqs"):
        return given
    default = 128 * topology.engine_size
    if hardware.accelerator == "cuda":
        memory_gib, a100 = min(gpu.memory_mib for gpu in hardware.gpus) / 1024, any("A100" in gpu.name for gpu in hardware.gpus)
        default = 1024 if memory_gib >= 160 or (memory_gib >= 70 and not a100) else 256
    default *= 2 if options.get("performance-mode") == "throughput" else 1
    return min(default, whole(options, "max-num-batched-tokens") or default)


def flag(options: Mapping[str, Any], name: str) -> bool | None:
    """Return whether a switch is on, given as ``NAME`` or as its negation ``no-NAME``; None if it is not given."""
    if options.get(name) is not None:
        return bool(options[name])
    negated = options.get(f"no-{name}")
    return None if negated is None else not negated


def in_words(load: LoadPoint) -> str:
    """Return the lengths of a request as text: ``64 + 32 = 96 tokens``, or ``512 (random-prefix-len) + 64 + 32 = 608 tokens``."""
    first = f"{load.template_tokens} (chat template) + " if load.template_tokens else ""
    first += f"{load.prefix_tokens} (random-prefix-len) + " if load.prefix_tokens else ""
    return f"{first}{load.prompts.input_tokens} + {load.prompts.output_tokens} = {load.request_tokens} tokens"


def shared_tokens(load: LoadPoint, options: Mapping[str, Any]) -> int:
    """Return the prompt tokens that the server reads and keeps once for all requests of a point.

    Prefix caching is on by default: vllm/engine/arg_utils.py, _set_default_chunked_prefill_and_prefix_caching_args (0.32.0).
    """
    return 0 if flag(options, "enable-prefix-caching") is False else load.prefix_tokens


def own_tokens(load: LoadPoint, options: Mapping[str, Any]) -> int:
    """Return the prompt tokens that the server reads and keeps for each request."""
    return load.prompt_tokens - shared_tokens(load, options)


def _no_number(name: str, value: object) -> PlanRefused:
    return PlanRefused(
        f"{name}: {value!r} is not a number that vLLM accepts.",
        do=f"Correct {name} in the deployment's options or variables.",
        reason="bad_option",
    )


@dataclass(frozen=True)
class Server:
    """The settings that decide the memory of a server's ranks, next to the shape of the model.

    Attributes:
        stages: layers of each pipeline stage.
        weight_bytes: tensor bytes of the checkpoint (Manifest.weight_bytes); None for dummy weights.
        memory_gib: GiB of one device in nvidia-smi; on CPU of the node.
        utilisation: gpu-memory-utilization, a share of ``memory_gib``.
        cache_bytes: KV cache of one rank, if an option or variable sets it.
        block_tokens, batched: block-size and max-num-batched-tokens, if set.
        element_bytes: bytes of one KV cache element; None: of the model's dtype.
        spread: ranks have whole experts (enable-expert-parallel).
        sharing: ranks that share one memory; 1 for devices.
        prefix_caching: whether the server keeps prefixes (enable-prefix-caching, vLLM's default).
        state_element_bytes: bytes of one element of a Mamba or linear attention state, if mamba-ssm-cache-dtype sets it.
    """

    topology: Topology
    stages: tuple[int, ...]
    weight_bytes: int | None
    accelerator: Literal["cpu", "cuda"]
    memory_gib: float
    utilisation: float = DEFAULT_UTILISATION
    cache_bytes: int | None = None
    block_tokens: int | None = None
    batched: int | None = None
    element_bytes: int | None = None
    spread: bool = False
    sharing: int = 1
    prefix_caching: bool = True
    state_element_bytes: int | None = None

    @property
    def batched_tokens(self) -> int:
        """Tokens in flight that sliding-window layers hold in addition to their window.

        This is max-num-batched-tokens. vLLM's default is 8192 for devices of 70 GiB or more, else 2048, and for CPU 2048 x tp x pp
        (engine/arg_utils.py). With asynchronous scheduling, vLLM 0.32 counts it twice.
        """
        if self.accelerator == "cpu":
            return self.batched or 2048 * self.topology.engine_size
        return self.batched or (8192 if self.memory_gib >= 70 else 2048)

    @classmethod
    def read(
        cls,
        topology: Topology,
        stages: tuple[int, ...],
        weight_bytes: int | None,
        options: Mapping[str, Any],
        variables: Mapping[str, str],
        hardware: Hardware,
    ) -> Server:
        """Read vLLM's options and variables; raise PlanRefused if one is not a number.

        On CPU each rank takes the GiB in ``VLLM_CPU_KVCACHE_SPACE``. Without it each server takes its share of the node's whole memory,
        and the second of two servers exits (vllm/v1/worker/cpu_worker.py, 0.32.0).
        """
        cpu = hardware.accelerator == "cpu"
        space = variables.get(CPU_SPACE) if cpu else None
        sharing = topology.devices_per_node if space else -(-topology.replicas // topology.nodes)
        return cls(
            topology,
            stages,
            weight_bytes,
            hardware.accelerator,
            memory_gib=hardware.memory_gib if cpu else min(gpu.memory_mib for gpu in hardware.gpus) / 1024,
            utilisation=number("gpu-memory-utilization", options.get("gpu-memory-utilization") or DEFAULT_UTILISATION),
            cache_bytes=int(number(CPU_SPACE, space) * GIB) if space else whole(options, "kv-cache-memory-bytes"),
            block_tokens=whole(options, "block-size"),
            batched=whole(options, "max-num-batched-tokens"),
            element_bytes=1 if str(options.get("kv-cache-dtype", "")).startswith("fp8") else None,
            spread=bool(flag(options, EXPERT_PARALLEL)),
            sharing=sharing if cpu else 1,
            prefix_caching=flag(options, "enable-prefix-caching") is not False,
            state_element_bytes=ELEMENT_BYTES.get(str(options.get("mamba-ssm-cache-dtype"))),
        )
