"""The two options of vLLM that choose its CUDA graphs: their values, and the check that only one of them is given."""

from collections.abc import Mapping
from typing import Any

LARGEST, SIZES = "max-cudagraph-capture-size", "cudagraph-capture-sizes"
WORKLOAD = "workload"
"""Instead of numbers: ``planning/cuda_graphs.py`` computes them from the load points."""

_ALLOWED = {LARGEST: "a whole number of 1 or more", SIZES: "a list of whole numbers of 1 or more"}


def numbers(value: object) -> list[int]:
    """Return the whole numbers of 1 or more in an option's value; [] if it contains anything else."""
    texts = [str(one).strip() for one in (value if isinstance(value, list | tuple) else [value])]
    return [int(text) for text in texts] if all(text.isdecimal() and int(text) for text in texts) else []


def without_workload(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options without those whose value is :data:`WORKLOAD`, which vLLM does not get."""
    return {name: value for name, value in options.items() if name not in _ALLOWED or value != WORKLOAD}


def refusal(options: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the wrong option and its fault, or None. A number and a list may both be given if they agree."""
    given = {name: options[name] for name in _ALLOWED if options.get(name) is not None}
    for name, value in given.items():
        found = numbers(value)
        if value != WORKLOAD and (not found or (name == LARGEST and len(found) > 1)):
            return name, f"is neither {_ALLOWED[name]} nor `{WORKLOAD}`; write one of them, or leave the option out"
    words = [name for name, value in given.items() if value == WORKLOAD]
    return (words[0], conflict(options)) if words and len(given) > 1 else None


def conflict(options: Mapping[str, Any]) -> str:
    """Return why the two options exclude each other."""
    return (
        f"{LARGEST}: {options[LARGEST]} and {SIZES}: {options[SIZES]} both choose the CUDA graphs, and vLLM exits if they differ; "
        "leave one of them out, or set it to null if it comes from an anchor"
    )
