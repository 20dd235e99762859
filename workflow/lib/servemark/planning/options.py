"""Values of `vllm serve`'s options as vLLM reads them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from servemark.errors import PlanRefused


def whole(options: Mapping[str, Any], name: str) -> int | None:
    """An option's whole number: "16k" is 16,000 and "16K" is 16,384; None when vLLM is to choose.

    Source: vllm/utils/argparse_utils.py, human_readable_int and human_readable_int_or_auto (0.32.0).

    Raises:
        PlanRefused: the value is no such number.
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
    """The number that an option or variable states.

    Raises:
        PlanRefused: the value is none.
    """
    try:
        return float(str(value))
    except ValueError:
        raise _no_number(name, value) from None


def count(options: Mapping[str, Any], name: str) -> int | None:
    """An option's number of 1 or more, where it is written as one: a word in its place is for others to judge."""
    text = str(options.get(name)).strip()
    return int(text) if text.isdecimal() and int(text) else None


def flag(options: Mapping[str, Any], name: str) -> bool | None:
    """Whether a switch is on, given as itself or as its negation ``no-NAME``; None when it is not given."""
    if options.get(name) is not None:
        return bool(options[name])
    negated = options.get(f"no-{name}")
    return None if negated is None else not negated


def element_bytes(options: Mapping[str, Any]) -> int | None:
    """Bytes of one element of the KV cache where kv-cache-dtype fixes it; None: as the model's dtype."""
    return 1 if str(options.get("kv-cache-dtype", "")).startswith("fp8") else None


def _no_number(name: str, value: object) -> PlanRefused:
    return PlanRefused(
        f"{name}: {value!r} is not a number as vLLM takes one there.",
        do=f"Correct {name} in the deployment's options or variables.",
        reason="bad_option",
    )
