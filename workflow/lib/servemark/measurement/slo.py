"""Latency targets (service level objectives, SLO): how many requests of a load meet them, and the goodput.

Targets decide no verdict and are in no ledger key. They are applied to stored per-request results, so that changing them measures nothing.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from servemark.measurement import steady
from servemark.measurement.raw import RawError, RawResult, Request, read_raw
from servemark.measurement.statistics import MS
from servemark.records import LoadPoint, Measurement

PERCENTILES: Mapping[str, int] = MappingProxyType({f"p{percentile}": percentile for percentile in steady.PERCENTILES})
LATENCIES: Mapping[str, Callable[[Request], float]] = MappingProxyType(
    {
        "ttft_ms": lambda request: request.ttft,
        # A request with one output token has no time between tokens, so it meets every target for it.
        "tpot_ms": lambda request: (request.latency - request.ttft) / (request.output_tokens - 1) if request.output_tokens > 1 else 0.0,
        "e2el_ms": lambda request: request.latency,
    }
)
"""Latency of one completed request in seconds, by the target's name."""
Targets = Mapping[str, Mapping[str, float]]
"""Limits in milliseconds by latency (``LATENCIES``) and percentile (``PERCENTILES``), such as ``{"ttft_ms": {"p95": 500}}``."""


@dataclass(frozen=True)
class Attainment:
    """How a measurement meets its targets.

    Attributes:
        part: the requests counted: those of the steady state, or all.
        met: whether every target is met.
        share: requests that keep every limit, over all requests of the part. Of several limits of one latency, the largest counts.
        requests_per_s: completed requests per second that keep every limit (goodput).
        tokens_per_s: their output tokens per second.
        ratio: a percentile over its limit, the largest of all targets; infinite if too few requests completed for a percentile.
    """

    part: Literal["steady state", "whole run"]
    met: bool
    share: float
    requests_per_s: float
    tokens_per_s: float
    ratio: float


def targets(config: Mapping[str, Any]) -> dict[str, Targets]:
    """Return the targets of each workload of a resolved configuration that has some: its own ones, or those of the run."""
    whole, workloads = config.get("slo"), config.get("workloads") or {}
    found = {name: _given(workload.get("slo") or whole) for name, workload in workloads.items() if isinstance(workload, Mapping)}
    return {name: asked for name, asked in found.items() if asked}


def _given(slo: Any) -> Targets:
    """Return the targets without those that are None."""
    limits = slo.items() if isinstance(slo, Mapping) else ()
    known = {name: {key: limit for key, limit in of.items() if limit is not None} for name, of in limits if isinstance(of, Mapping)}
    return {name: of for name, of in known.items() if of}


def attainments(asked: Mapping[str, Targets], results: Iterable[tuple[Measurement, Path]]) -> dict[tuple[str, str], Attainment]:
    """Return the attainment of each accepted measurement that has targets and enough requests, by deployment and load point.

    Args:
        asked: targets by workload.
        results: measurements and their per-request results. A file that cannot be read is skipped: the verdict reports it.
    """
    found = {}
    for item, path in results:
        wanted = asked.get(item.load.workload)
        if not wanted or item.verdict == "INVALID":
            continue
        try:
            reached = attained(read_raw(path), item, wanted)
        except RawError:
            continue
        if reached:
            found[item.deployment, item.load.name] = reached
    return found


def attained(raw: RawResult, item: Measurement, wanted: Targets) -> Attainment | None:
    """Return how the requests of a measurement meet the targets, or None if there are too few for a percentile.

    A target ``p95: 500`` is met if at least 95 % of the requests take at most 500 ms. A failed request misses every target. The requests
    are those that start in the steady state; if it has too few (``steady.needed``), all requests of the load.
    """
    least = max(steady.needed(PERCENTILES[name]) for limits in wanted.values() for name in limits)
    span = _span(raw, item.load) if item.steady else None
    inside = [request for request in raw.requests if span is None or span.begin <= request.start < span.end]
    if item.steady and span and len(inside) >= least:
        return _attainment("steady state", inside, wanted, item.steady.request_throughput, item.steady.output_throughput)
    if len(raw.requests) < least or item.request_throughput is None or item.output_throughput is None:
        return None
    return _attainment("whole run", raw.requests, wanted, item.request_throughput, item.output_throughput)


def _span(raw: RawResult, load: LoadPoint) -> steady.Span | None:
    found = steady.find(raw, load)
    return found if isinstance(found, steady.Span) else None


def _attainment(
    part: Literal["steady state", "whole run"], requests: Sequence[Request], wanted: Targets, request_rate: float, token_rate: float
) -> Attainment:
    """Return the attainment of some requests, one or more of which completed. The rates are those of completed requests, per second."""
    completed = [request for request in requests if request.ok]

    def within(request: Request, latency: str, limit: float) -> bool:
        return MS * LATENCIES[latency](request) <= limit

    asked = [(latency, PERCENTILES[name], limit) for latency, limits in wanted.items() for name, limit in limits.items()]
    met = all(
        100 * sum(within(request, latency, limit) for request in completed) >= percentile * len(requests)
        for latency, percentile, limit in asked
    )

    def ratio(latency: str, percentile: int, limit: float) -> float:
        least = math.ceil(percentile * len(requests) / 100)
        values = sorted(MS * LATENCIES[latency](request) for request in completed)
        return values[least - 1] / limit if least <= len(values) else math.inf

    good = [request for request in completed if all(within(request, latency, max(limits.values())) for latency, limits in wanted.items())]
    tokens = sum(request.output_tokens for request in completed)
    return Attainment(
        part=part,
        met=met,
        share=len(good) / len(requests),
        requests_per_s=request_rate * len(good) / len(completed) if completed else 0.0,
        tokens_per_s=token_rate * sum(request.output_tokens for request in good) / tokens if tokens else 0.0,
        ratio=max(ratio(*one) for one in asked),
    )
