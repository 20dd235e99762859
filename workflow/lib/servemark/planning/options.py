"""Values of `vllm serve`'s options as vLLM reads them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from servemark.errors import PlanRefused
from servemark.records import Hardware, Topology


def whole(options: Mapping[str, Any], name: str) -> int | None:
    """Return an option's whole number: "16k" is 16,000 and "16K" is 16,384; None when vLLM is to choose; else raise PlanRefused.

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
    """Return the number that an option or variable states; raise PlanRefused if it is none."""
    try:
        return float(str(value))
    except ValueError:
        raise _no_number(name, value) from None


def count(options: Mapping[str, Any], name: str) -> int | None:
    """Return an option's number of 1 or more, where it is written as one: a word in its place is for others to judge."""
    text = str(options.get(name)).strip()
    return int(text) if text.isdecimal() and int(text) else None


def max_num_seqs(options: Mapping[str, Any], topology: Topology, hardware: Hardware) -> int:
    """Return requests that an engine runs at a time: the option, else vLLM's default for `vllm serve`.

    Source: vllm/engine/arg_utils.py, get_batch_defaults and _set_default_max_num_seqs_and_batched_tokens_args (0.32.0): by
    the memory of the GPU, which A100s of 80 GB are left out of; on CPU 128 for each rank of the engine.
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
    """Return whether a switch is on, given as itself or as its negation ``no-NAME``; None when it is not given."""
    if options.get(name) is not None:
        return bool(options[name])
    negated = options.get(f"no-{name}")
    return None if negated is None else not negated


def _no_number(name: str, value: object) -> PlanRefused:
    return PlanRefused(
        f"{name}: {value!r} is not a number as vLLM takes one there.",
        do=f"Correct {name} in the deployment's options or variables.",
        reason="bad_option",
    )
