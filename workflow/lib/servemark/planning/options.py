"""Options of `vllm serve` as vLLM reads them, and the tokens of a request under these options."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from servemark.errors import PlanRefused
from servemark.records import Hardware, LoadPoint, Topology


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
    first = f"{load.prefix_tokens} (random-prefix-len) + " if load.prefix_tokens else ""
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
