"""What a vLLM server logged about its memory, against what was planned."""

from __future__ import annotations

import re

from servemark.records import Estimate

ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
NUMBER = r"([\d,]+(?:\.\d+)?)"

WEIGHTS = re.compile(rf"Model loading took {NUMBER} GiB")
CUDA_CACHE = re.compile(rf"Available KV cache memory: {NUMBER} GiB")
CPU_CACHE = re.compile(rf"(?:Explicitly|Auto) set \({NUMBER}/{NUMBER}\) GiB for KV cache")
TOKENS = re.compile(rf"\w+ KV cache size: {NUMBER} tokens")
CONCURRENCY = re.compile(rf"Maximum concurrency for {NUMBER} tokens per request: {NUMBER}x")


def observe(log_text: str) -> dict[str, float]:
    """Return the memory values of one server's log; a value that the log lacks is left out.

    ``weights_gib`` is the largest rank's, ``kv_cache_gib`` the smallest's: vLLM gives every rank as many blocks as that one has.
    ``kv_cache_tokens`` and ``max_concurrency`` are the smallest engine's. Knows vLLM 0.25.1 on GPUs and 0.32.0 on CPU (no size of weights).
    """
    text = ANSI.sub("", log_text)
    found: dict[str, float] = {}
    if weights := [_number(match[1]) for match in WEIGHTS.finditer(text)]:
        found["weights_gib"] = max(weights)
    caches = [_number(match[1]) for pattern in (CUDA_CACHE, CPU_CACHE) for match in pattern.finditer(text)]
    if caches:
        found["kv_cache_gib"] = min(caches)
    if tokens := [_number(match[1]) for match in TOKENS.finditer(text)]:
        found["kv_cache_tokens"] = min(tokens)
    if concurrency := [_number(match[2]) for match in CONCURRENCY.finditer(text)]:
        found["max_concurrency"] = min(concurrency)
    return found


def compare(estimated: Estimate, observed: dict[str, float]) -> dict[str, float]:
    """Return observed over estimated for every figure that was observed; 1.0 is a perfect plan."""
    planned = estimated.model_dump()
    return {name: value / planned[name] for name, value in observed.items() if planned.get(name)}


def _number(text: str) -> float:
    return float(text.replace(",", ""))
