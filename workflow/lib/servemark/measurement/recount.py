"""The figures of completed requests, and where the client's own totals are others."""

from __future__ import annotations

import math
from collections.abc import Sequence

from servemark.measurement import statistics
from servemark.measurement.raw import Request, Results

# Sums of thousands of float64 differ by far less when only the order of adding differs.
SAME_FIGURE = 1e-6


def recount(duration_s: float, good: Sequence[Request]) -> statistics.Figures:
    """Return the figures of the completed requests of one load point.

    Raises:
        ValueError: a duration that is not positive, or a time that is not finite.
    """
    return statistics.figures(
        duration_s=duration_s,
        input_tokens=[request.input_tokens for request in good],
        output_tokens=[request.output_tokens for request in good],
        ttfts=[request.ttft for request in good],
        itls=[request.itls for request in good],
        latencies=[request.latency for request in good],
    )


def span_of(requests: Sequence[Request]) -> float:
    """Return the seconds from the first start of requests to the last end. ``requests``: one or more."""
    return max(request.start + request.latency for request in requests) - min(request.start for request in requests)


def disagreements(said: Results, figures: statistics.Figures) -> list[str]:
    """Return every total of the client that is not the one of its own requests, with both numbers.

    Args:
        figures: those of ``said``'s completed requests.
    """
    ours = {
        "completed": len(said.good),
        "failed": len(said.requests) - len(said.good),
        "total_input_tokens": figures.total_input_tokens,
        "total_output_tokens": figures.total_output_tokens,
        "request_throughput": figures.request_throughput,
        "output_throughput": figures.output_throughput,
        "total_token_throughput": figures.total_throughput,
        "mean_ttft_ms": figures.ttft_ms.mean if figures.ttft_ms else 0.0,
        "mean_itl_ms": figures.itl_ms.mean if figures.itl_ms else 0.0,
        "first_start": min((request.start for request in said.requests), default=0.0),
    }
    client = {"completed": said.completed, "failed": said.failed, **said.totals}
    return [f"{name} {theirs:g} (ours {ours[name]:g})" for name, theirs in client.items() if not same(ours[name], theirs)]


def same(ours: float, theirs: float) -> bool:
    """Return whether two sums are one figure."""
    return math.isclose(ours, theirs, rel_tol=SAME_FIGURE, abs_tol=1e-9)
