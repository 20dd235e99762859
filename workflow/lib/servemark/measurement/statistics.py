"""Latency distributions and throughputs of one load point, from its per-request times.

Every definition is that of ``vllm bench serve`` (``calculate_metrics`` in vllm/benchmarks/serve.py, vLLM 0.32), so that
our recount can be compared with the client's own totals: only completed requests count; percentiles are numpy's
default (linear interpolation); the standard deviation is the population's (numpy's default, ddof=0).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from servemark.records import Summary

MS = 1000.0


@dataclass(frozen=True)
class Figures:
    """The recounted figures of one load point; the names are those of ``records.Measurement``."""

    duration_s: float
    total_input_tokens: int
    total_output_tokens: int
    request_throughput: float
    output_throughput: float
    total_throughput: float
    ttft_ms: Summary | None
    tpot_ms: Summary | None
    itl_ms: Summary | None
    e2el_ms: Summary | None


def summarise(values_ms: Sequence[float]) -> Summary | None:
    """Return the distribution of latencies in milliseconds; None when there are none.

    Raises:
        ValueError: a value is NaN or infinite.
    """
    if len(values_ms) == 0:
        return None
    values = np.asarray(values_ms, dtype=np.float64)
    if not np.isfinite(values).all():
        raise ValueError("a latency is not a finite number")
    p50, p95, p99 = np.percentile(values, [50, 95, 99])
    return Summary(
        count=len(values),
        mean=float(values.mean()),
        std=float(values.std()),
        p50=float(p50),
        p95=float(p95),
        p99=float(p99),
        max=float(values.max()),
    )


def times_per_output_token(latencies: Sequence[float], ttfts: Sequence[float], output_tokens: Sequence[int]) -> list[float]:
    """Return TPOT in seconds: (latency - ttft) / (output tokens - 1), of the requests with more than one output token."""
    return [(latency - ttft) / (tokens - 1) for latency, ttft, tokens in zip(latencies, ttfts, output_tokens, strict=True) if tokens > 1]


def inter_token_latencies(itls: Sequence[Sequence[float]]) -> list[float]:
    """Return ITL in seconds: the gaps between streamed chunks of all requests in one list."""
    return list(chain.from_iterable(itls))


def figures(
    *,
    duration_s: float,
    input_tokens: Sequence[int],
    output_tokens: Sequence[int],
    ttfts: Sequence[float],
    itls: Sequence[Sequence[float]],
    latencies: Sequence[float],
) -> Figures:
    """Return all figures of one load point.

    Args:
        duration_s: wall time of the whole load in seconds, greater than 0.
        input_tokens, output_tokens, ttfts, itls, latencies: one entry per completed request; times in seconds.

    Raises:
        ValueError: lists of other lengths, a duration that is not positive, or a time that is not finite.
    """
    if not duration_s > 0:
        raise ValueError(f"duration must be greater than 0 s, got {duration_s}")
    if len({len(values) for values in (input_tokens, output_tokens, ttfts, itls, latencies)}) != 1:
        raise ValueError("the per-request lists have other lengths")
    total_input, total_output = sum(input_tokens), sum(output_tokens)
    return Figures(
        duration_s=duration_s,
        total_input_tokens=total_input,
        total_output_tokens=total_output,
        request_throughput=len(latencies) / duration_s,
        output_throughput=total_output / duration_s,
        total_throughput=(total_input + total_output) / duration_s,
        ttft_ms=_summarise_seconds(ttfts),
        tpot_ms=_summarise_seconds(times_per_output_token(latencies, ttfts, output_tokens)),
        itl_ms=_summarise_seconds(inter_token_latencies(itls)),
        e2el_ms=_summarise_seconds(latencies),
    )


def _summarise_seconds(seconds: Sequence[float]) -> Summary | None:
    return summarise([value * MS for value in seconds])
