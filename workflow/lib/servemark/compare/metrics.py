"""The compared metrics, and their ratios over all common load points."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from servemark.measurement.intervals import LEAST, Interval
from servemark.records.comparison import ComparedMetric, Verdict
from servemark.report import formatting
from servemark.report.columns import STEADY

Point = Mapping[str, Any]
"""The medians of a load point: a row of ``views.medians``."""


@dataclass(frozen=True)
class Metric:
    """A compared metric. ``column``: its column in the table. ``rises``: a higher value is better."""

    name: str
    column: str
    label: str
    rises: bool = False


METRICS = {
    metric.name: metric
    for metric in (
        Metric("throughput", "output_tokens_per_s", "output tokens/s", rises=True),
        Metric("total_throughput", "total_tokens_per_s", "total tokens/s", rises=True),
        Metric("mean_ttft", "ttft_mean_ms", "TTFT mean, ms"),
        Metric("p95_ttft", "ttft_p95_ms", "TTFT p95, ms"),
        Metric("p50_tpot", "tpot_p50_ms", "TPOT p50, ms"),
        Metric("p95_tpot", "tpot_p95_ms", "TPOT p95, ms"),
        Metric("p50_e2el", "e2el_p50_ms", "E2EL p50, ms"),
    )
}
"""By name in --gate, in the order of tables."""
COLUMNS = tuple(name for metric in METRICS.values() for name in (metric.column, f"{STEADY}{metric.column}"))
"""The columns of the table behind them."""


@dataclass(frozen=True)
class Both:
    """The medians of a load point on both sides. ``apart``: why their whole runs tell nothing, or "" if they can be compared."""

    a: Point
    b: Point
    apart: str = ""
    reference: bool = False


def compared(points: Sequence[Both]) -> list[tuple[ComparedMetric, ...]]:
    """Return the metrics of each point, in the order of ``METRICS`` and without those that a side does not have.

    A metric is compared in the steady state if both sides have it there, otherwise in the whole run.
    """
    found: list[list[ComparedMetric]] = [[] for _ in points]
    for metric in METRICS.values():
        for of, result in zip(found, _metric(metric, points), strict=True):
            of += [result] if result else []
    return [tuple(of) for of in found]


def _metric(metric: Metric, points: Sequence[Both]) -> list[ComparedMetric | None]:
    # An interval for each point alone would take seconds for thousands of points.
    steady = STEADY + metric.column
    names = [steady if _has(both, steady) else metric.column for both in points]
    sides = [_intervals([(getattr(both, side), name) for both, name in zip(points, names, strict=True)]) for side in ("a", "b")]
    ratio = sides[1].over(sides[0]) if points else Interval([], [], [])
    ends = zip(np.atleast_1d(ratio.low), np.atleast_1d(ratio.high), strict=True)
    return [
        _compared(metric, both, name, (float(low), float(high))) if _has(both, name) else None
        for both, name, (low, high) in zip(points, names, ends, strict=True)
    ]


def _has(both: Both, name: str) -> bool:
    return both.a[f"{name}_median"] is not None and both.b[f"{name}_median"] is not None


def _intervals(columns: Sequence[tuple[Point, str]]) -> Interval:
    """Return the intervals of one column for each point; NaN where there is none."""
    ends = [[math.nan if (end := point[f"{name}_{which}"]) is None else end for point, name in columns] for which in ("low", "high")]
    repetitions = [point[f"{name}_repetitions"] for point, name in columns]
    return Interval(*(np.array(values, dtype=np.float64) for values in (*ends, repetitions)))


def _compared(metric: Metric, both: Both, name: str, ends: tuple[float, float]) -> ComparedMetric:
    a, b = both.a[f"{name}_median"], both.b[f"{name}_median"]
    known = not math.isnan(ends[0])
    steady = name.startswith(STEADY)
    why = None if known else _unknown(both, name)
    if known and both.apart and not steady:
        why = both.apart
    return ComparedMetric(
        metric=metric.name,
        part="steady state" if steady else "whole run",
        a=a,
        b=b,
        ratio=b / a if a else None,
        low=ends[0] if known else None,
        high=ends[1] if known else None,
        verdict="cannot tell" if why else _verdict(metric, ends),
        why=why,
    )


def _unknown(both: Both, name: str) -> str:
    if both.reference:
        return "the reference has no repetitions"
    counts = {"A": both.a[f"{name}_repetitions"], "B": both.b[f"{name}_repetitions"]}
    few = [f"{side} has {formatting.plural(count, 'repetition')}" for side, count in counts.items() if count < LEAST]
    return " and ".join(few).replace("\N{NO-BREAK SPACE}", " ") or "a result is not positive"


def _verdict(metric: Metric, ends: tuple[float, float]) -> Verdict:
    low, high = ends
    if not (low > 1 or high < 1):
        return "no difference shown"
    return "better" if (low > 1) == metric.rises else "worse"
