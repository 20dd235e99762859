"""Recounted results equal vLLM's own for real files."""

import json
import math

import numpy as np
import pytest

from builders.paths import FIXTURES
from builders.requests import request
from servemark.measurement import statistics
from servemark.measurement.raw import read_raw


def recount(name):
    raw = read_raw(FIXTURES / name)
    return json.loads((FIXTURES / name).read_text()), statistics.recount(raw.duration_s, raw.good)


@pytest.mark.parametrize("name", ["bench-0.32.0-cpu-detailed.json", "bench-0.32.0-cpu-server-killed.json"])
@pytest.mark.parametrize("latency", ["ttft", "tpot", "itl", "e2el"])
def test_each_latency_equals_the_clients_own(name, latency):
    data, figures = recount(name)
    summary = getattr(figures, f"{latency}_ms")
    for ours, theirs in [
        ("mean", "mean"),
        ("p50", "median"),
        ("std", "std"),
        ("p50", "p50"),
        ("p95", "p95"),
        ("p99", "p99"),
    ]:
        assert getattr(summary, ours) == pytest.approx(data[f"{theirs}_{latency}_ms"], rel=1e-9), theirs


@pytest.mark.parametrize("name", ["bench-0.32.0-cpu-detailed.json", "bench-0.32.0-cpu-server-killed.json"])
def test_every_throughput_equals_the_clients_own(name):
    data, figures = recount(name)
    assert figures.total_input_tokens == data["total_input_tokens"]
    assert figures.total_output_tokens == data["total_output_tokens"]
    assert figures.request_throughput == pytest.approx(data["request_throughput"], rel=1e-12)
    assert figures.output_throughput == pytest.approx(data["output_throughput"], rel=1e-12)
    assert figures.total_throughput == pytest.approx(data["total_token_throughput"], rel=1e-12)


@pytest.mark.parametrize(
    ("values", "p50", "p95", "std"),
    [
        ([7.0], 7000.0, 7000.0, 0.0),
        ([1.0, 3.0], 2000.0, 2900.0, 1000.0),
        ([4.0, 1.0, 3.0, 2.0], 2500.0, 3850.0, 1000 * math.sqrt(1.25)),
    ],
)
def test_percentiles_are_linear_and_std_is_population(values, p50, p95, std):
    summary = statistics.summarise(values)
    assert (summary.p50, summary.p95, summary.std) == pytest.approx((p50, p95, std))
    assert (summary.count, summary.max) == (len(values), 1000 * max(values))
    assert summary.p99 == pytest.approx(1000 * np.percentile(values, 99))


def test_no_values_have_no_summary():
    assert statistics.summarise([]) is None


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_is_refused(value):
    with pytest.raises(ValueError, match="finite"):
        statistics.summarise([1.0, value])


def test_request_with_one_output_token_has_no_tpot():
    good = [
        request(latency=2.0, ttft=1.0),
        request(latency=1.0, ttft=1.0, output_tokens=1),
        request(latency=5.0, ttft=2.0, output_tokens=2),
    ]
    assert statistics.latencies(good)["tpot"] == [0.5, 3.0]
    figures = statistics.recount(1.0, [request(output_tokens=1, ttft=0.5, itls=(), latency=0.5)])
    assert figures.tpot_ms is None
    assert figures.itl_ms is None
    assert figures.e2el_ms.mean == 500.0


def test_no_completed_request_gives_zero_throughput():
    figures = statistics.recount(2.0, [])
    assert (figures.request_throughput, figures.total_throughput, figures.ttft_ms) == (0.0, 0.0, None)


@pytest.mark.parametrize("duration", [0.0, -1.0, math.nan])
def test_a_duration_that_is_not_positive_is_refused(duration):
    with pytest.raises(ValueError, match="duration"):
        statistics.recount(duration, [])
