"""Limits for regressions: their syntax, and when a whole interval is beyond one."""

from __future__ import annotations

import pytest

from servemark.compare.errors import NotComparable
from servemark.compare.gate import Limit, parsed, results
from servemark.compare.metrics import METRICS
from servemark.records import ComparedMetric, ComparedPoint


def point(metric: str, low: float | None, high: float | None) -> ComparedPoint:
    known = low is not None
    one = ComparedMetric(
        metric=metric, part="steady state", a=1.0, b=1.0, ratio=1.0, low=low, high=high,
        verdict="worse" if known else "cannot tell", why=None if known else "2 repetitions",
    )  # fmt: skip
    return ComparedPoint(pair="p", workload="w", load="c=1", repetitions_a=3, repetitions_b=3, metrics=(one,))


def test_limits_are_read_in_order():
    assert parsed("throughput:-5%, p95_ttft:+10.5%") == (Limit("throughput", -5.0), Limit("p95_ttft", 10.5))
    assert [limit.text for limit in parsed("throughput:-5%,p95_ttft:+10%")] == ["throughput:-5%", "p95_ttft:+10%"]


@pytest.mark.parametrize(
    "text",
    ["", "throughput", "throughput:5%", "throughput:-5", "throughput:+5%", "p95_ttft:-5%", "speed:-5%", "throughput:-100%",
     "throughput:-5%,throughput:-6%", "throughput:-5%,", "throughput:-nan%", "throughput:-\N{ARABIC-INDIC DIGIT FIVE}%"],
)  # fmt: skip
def test_bad_limit_is_refused_with_the_allowed_names(text):
    with pytest.raises(NotComparable) as refused:
        parsed(text)
    assert (refused.value.exit_code, refused.value.reason) == (2, "bad_gate")
    assert all(name in refused.value.do for name in METRICS)


@pytest.mark.parametrize(
    ("metric", "percent", "low", "high", "exceeded"),
    [
        ("throughput", -5, 0.90, 0.94, True),
        ("throughput", -5, 0.90, 0.96, False),
        ("throughput", -5, 0.96, 0.98, False),
        ("throughput", -5, 1.10, 1.20, False),
        ("p95_ttft", 10, 1.12, 1.30, True),
        ("p95_ttft", 10, 1.05, 1.30, False),
        ("p95_ttft", 10, 0.50, 0.60, False),
        ("throughput", -5, None, None, False),
    ],
)
def test_limit_is_exceeded_only_by_a_whole_interval(metric, percent, low, high, exceeded):
    (result,) = results([Limit(metric, percent)], [point(metric, low, high)])
    assert bool(result.exceeded) is exceeded
    assert result.undecided == (low is None)
    assert result.state == ("undecided" if low is None else "failed" if exceeded else "passed")


def test_metric_without_a_result_is_undecided():
    (result,) = results([Limit("p95_tpot", 5)], [point("throughput", 0.5, 0.6)])
    assert (result.exceeded, result.undecided, result.points) == ((), 1, 1)
