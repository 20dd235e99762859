"""The two options that say which CUDA graphs vLLM captures: what may stand there, and that one of them is given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

LARGEST, SIZES = "max-cudagraph-capture-size", "cudagraph-capture-sizes"
WORKLOAD = "workload"
"""In the place of numbers: what the load points need, put in when the deployment is planned (``planning/cuda_graphs.py``)."""

_ALLOWED = {LARGEST: "a whole number of 1 or more", SIZES: "a list of whole numbers of 1 or more"}


def numbers(value: object) -> list[int]:
    """Return the whole numbers of 1 or more that an option's value is made of; none where anything else is among them."""
    texts = [str(one).strip() for one in (value if isinstance(value, list | tuple) else [value])]
    return [int(text) for text in texts] if all(text.isdecimal() and int(text) for text in texts) else []


def refusal(options: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the option at fault and what is wrong with it, or None. A number next to a list is legal where both agree."""
    for name, allowed in _ALLOWED.items():
        value = options.get(name)
        found = numbers(value)
        if value not in (None, WORKLOAD) and (not found or (name == LARGEST and len(found) > 1)):
            return name, f"is neither {allowed} nor `{WORKLOAD}`; write one of them, or leave the option out"
    given = {name: options[name] for name in _ALLOWED if options.get(name) is not None}
    if len(given) > 1 and WORKLOAD in given.values():
        word = next(name for name, value in given.items() if value == WORKLOAD)
        return word, both(given)
    return None


def both(options: Mapping[str, Any]) -> str:
    """Return why the two options cannot stand together."""
    return (
        f"{LARGEST}: {options[LARGEST]} and {SIZES}: {options[SIZES]} both say which CUDA graphs are captured, and vLLM ends where the "
        "two differ; leave one of them out, or set it to null where it comes from an anchor"
    )
