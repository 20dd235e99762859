"""The results of one load point, recounted from its requests, and the client's own totals that differ from them.

Every definition is that of ``vllm bench serve`` (``calculate_metrics`` in vllm/benchmarks/serve.py, vLLM 0.32): only completed requests
count; percentiles are numpy's default (linear interpolation); the standard deviation is the population's (numpy's default, ddof=0).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from servemark.measurement.raw import Request, Results
from servemark.records import Summary

MS = 1000.0
# Sums of thousands of float64 differ by far less when only the order of addition differs.
SAME_RESULT = 1e-6


@dataclass(frozen=True)
class Figures:
    """The recounted results of one load point; the names are those of ``records.Measurement``."""

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


def summarise(seconds: Sequence[float]) -> Summary | None:
    """Return the distribution of latencies in milliseconds; None without values.

    Raises:
        ValueError: a latency is not finite.
    """
    if len(seconds) == 0:
        return None
    values = np.asarray([second * MS for second in seconds], dtype=np.float64)
    if not np.isfinite(values).all():
        raise ValueError("a latency is not a finite number")
    p50, p95, p99 = map(float, np.percentile(values, [50, 95, 99]))
    mean, std, largest = float(values.mean()), float(values.std()), float(values.max())
    return Summary(count=len(values), mean=mean, std=std, p50=p50, p95=p95, p99=p99, max=largest)


def tpots(good: Sequence[Request]) -> list[float]:
    """Return (latency - TTFT) / (output tokens - 1) in seconds, for each request with more than one output token."""
    return [(request.latency - request.ttft) / (request.output_tokens - 1) for request in good if request.output_tokens > 1]


def latencies(good: Sequence[Request]) -> dict[str, list[float]]:
    """Return all latencies of completed requests in seconds, by metric.

    ITL are the gaps between streamed chunks.
    """
    return {
        "ttft": [request.ttft for request in good],
        "tpot": tpots(good),
        "itl": [gap for request in good for gap in request.itls],
        "e2el": [request.latency for request in good],
    }


def recount(duration_s: float, good: Sequence[Request]) -> Figures:
    """Return the results of the completed requests of one load point.

    Raises:
        ValueError: a duration that is not positive, or a time that is not finite.
    """
    if not duration_s > 0:
        raise ValueError(f"duration must be greater than 0 s, got {duration_s}")
    total_input, total_output = sum(request.input_tokens for request in good), sum(request.output_tokens for request in good)
    summaries = {f"{metric}_ms": summarise(seconds) for metric, seconds in latencies(good).items()}
    return Figures(
        duration_s=duration_s,
        total_input_tokens=total_input,
        total_output_tokens=total_output,
        request_throughput=len(good) / duration_s,
        output_throughput=total_output / duration_s,
        total_throughput=(total_input + total_output) / duration_s,
        **summaries,
    )


def span_of(requests: Sequence[Request]) -> float:
    """Return the seconds from the first start of one or more requests to the last end."""
    return max(request.start + request.latency for request in requests) - min(request.start for request in requests)


def disagreements(client: Results, figures: Figures) -> list[str]:
    """Return every total of the client that differs from ``figures``, recounted from its completed requests, with both numbers."""
    ours = {
        "completed": len(client.good),
        "failed": len(client.requests) - len(client.good),
        "total_input_tokens": figures.total_input_tokens,
        "total_output_tokens": figures.total_output_tokens,
        "request_throughput": figures.request_throughput,
        "output_throughput": figures.output_throughput,
        "total_token_throughput": figures.total_throughput,
        "mean_ttft_ms": figures.ttft_ms.mean if figures.ttft_ms else 0.0,
        "mean_itl_ms": figures.itl_ms.mean if figures.itl_ms else 0.0,
        "first_start": min((request.start for request in client.requests), default=0.0),
    }
    totals = {"completed": client.completed, "failed": client.failed, **client.totals}
    return [f"{name} {theirs:g} (recounted {ours[name]:g})" for name, theirs in totals.items() if not same(ours[name], theirs)]


def same(ours: float, theirs: float) -> bool:
    """Return whether two sums are equal within rounding."""
    return math.isclose(ours, theirs, rel_tol=SAME_RESULT, abs_tol=1e-9)
