"""Latency targets: which requests meet them, of which part of the load, and the goodput."""

from __future__ import annotations

import json

import pytest

from builders import report_data
from builders.requests import raw_of, request
from servemark.measurement import slo
from servemark.measurement.steady import needed

COUNT = 100


def item(**changes):
    values = {"steady": None, "request_throughput": 10.0, "output_throughput": 30.0}
    return report_data.measurement(concurrency=2, **values | changes)


def requests(ttfts, **changes):
    return [request(number, ttft=ttft, **changes) for number, ttft in enumerate(ttfts)]


def attained(found, wanted, **changes):
    return slo.attained(raw_of(found), item(**changes), wanted)


@pytest.mark.parametrize(("slow", "met"), [(5, True), (6, False)])
def test_percentile_is_met_if_enough_requests_keep_its_limit(slow, met):
    found = attained(requests([0.1] * (COUNT - slow) + [0.9] * slow), {"ttft_ms": {"p95": 500.0}})
    assert (found.part, found.met, found.share) == ("whole run", met, (COUNT - slow) / COUNT)
    assert (found.requests_per_s, found.tokens_per_s) == pytest.approx((10.0 * found.share, 30.0 * found.share))


def test_ratio_is_that_of_the_percentile_to_its_limit():
    values = [0.1] * 50 + [0.4] * 45 + [0.9] * 5
    assert attained(requests(values), {"ttft_ms": {"p95": 500.0}}).ratio == pytest.approx(0.8)
    assert attained(requests(values), {"ttft_ms": {"p50": 50.0, "p95": 500.0}}).ratio == pytest.approx(2.0), "the worst target"
    found = requests(values[:94]) + [request(number, ok=False, error="HTTP 500", ttft=0.0, itls=()) for number in range(94, COUNT)]
    assert attained(found, {"ttft_ms": {"p95": 500.0}}).ratio == float("inf")


def test_limit_itself_is_met():
    assert attained(requests([0.5] * COUNT), {"ttft_ms": {"p95": 500.0}}).share == 1.0


def test_request_must_keep_the_limit_of_every_latency():
    found = requests([0.1] * 60 + [0.9] * 20) + [request(number, ttft=0.1, itls=(5.0, 5.0)) for number in range(80, 100)]
    reached = attained(found, {"ttft_ms": {"p50": 500.0}, "tpot_ms": {"p50": 2000.0}})
    assert (reached.met, reached.share) == (True, 0.6)


def test_largest_limit_of_a_latency_decides_about_a_request():
    reached = attained(requests([0.1] * 50 + [0.4] * 50), {"ttft_ms": {"p50": 200.0, "p95": 500.0}})
    assert (reached.met, reached.share) == (True, 1.0)
    assert not attained(requests([0.1] * 49 + [0.4] * 51), {"ttft_ms": {"p50": 200.0, "p95": 500.0}}).met


def test_failed_request_misses_every_target():
    found = requests([0.1] * 94) + [request(number, ok=False, error="HTTP 500", ttft=0.0, itls=()) for number in range(94, COUNT)]
    reached = attained(found, {"ttft_ms": {"p95": 500.0}})
    assert (reached.met, reached.share, reached.requests_per_s) == (False, 0.94, 10.0)


def test_request_with_one_output_token_has_no_tpot_to_miss():
    found = requests([0.1] * COUNT, output_tokens=1, itls=(), latency=0.1)
    assert attained(found, {"tpot_ms": {"p95": 0.001}}).share == 1.0


@pytest.mark.parametrize(("name", "percentile"), slo.PERCENTILES.items())
def test_percentile_needs_as_many_requests_as_its_interval(name, percentile):
    least = needed(percentile)
    for count in (least - 1, least):
        assert (attained(requests([0.1] * count), {"e2el_ms": {name: 9000.0}}) is None) == (count < least)


def test_requests_of_the_steady_state_count_alone():
    # The first request of both slots is slow. Two slots, each with 60 requests.
    found = [request(number, ttft=0.9 if number < 2 else 0.1) for number in range(120)]
    steady = report_data.steady(30.0, 100.0, 1000.0, count=116, request_throughput=0.8)
    reached = attained(found, {"ttft_ms": {"p95": 500.0}}, steady=steady)
    assert (reached.part, reached.share, reached.requests_per_s, reached.tokens_per_s) == ("steady state", 1.0, 0.8, 30.0)
    few = attained(found, {"ttft_ms": {"p99": 500.0}}, steady=steady)
    assert few is None, "p99 needs 368 requests"
    short = attained(found[:72], {"ttft_ms": {"p95": 500.0}}, steady=steady)
    assert (short.part, short.share) == ("whole run", 70 / 72)


def test_targets_of_a_workload_replace_those_of_the_run():
    own, whole = {"ttft_ms": {"p50": None, "p95": 1.0}, "tpot_ms": None}, {"e2el_ms": {"p50": 2.0}}
    config = {"slo": whole, "workloads": {"a": {"slo": own}, "b": {"slo": None}, "c": {}}}
    assert slo.targets(config) == {"a": {"ttft_ms": {"p95": 1.0}}, "b": whole, "c": whole}
    assert slo.targets({"workloads": {"a": {}}}) == slo.targets({}) == {}


def test_measurements_without_targets_or_results_have_no_attainment(tmp_path):
    path = tmp_path / "raw.json"
    path.write_text(json.dumps({}))
    one = item()
    wanted = {one.load.workload: {"ttft_ms": {"p50": 1.0}}}
    assert slo.attainments(wanted, [(one, path), (one, tmp_path / "absent.json")]) == {}
    assert slo.attainments({"other": {}}, [(one, path)]) == {}
