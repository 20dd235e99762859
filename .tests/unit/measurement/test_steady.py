"""The steady state against a simulated engine whose long-run results are known, and against results by hand."""

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from builders.loads import load
from builders.requests import EACH_S, EVERY_S, FINE, as_client, codes, point, raw_of, request, thresholds
from builders.simulated_engine import Engine, closed_loop, lengths, open_loop
from servemark.measurement import steady
from servemark.measurement.verdict import judge

SLOTS = (8, 32, 128, 512)


def course(requests, concurrency=None, rate=None, clients=()):
    span = max(one.start + one.latency for one in requests) - min(one.start for one in requests)
    raw = raw_of(requests, duration=span, clients=clients)
    return steady.course(raw, load(concurrency=concurrency, request_rate=rate, clients=max(1, len(clients))))


@cache
def truth(kind, slots):
    """Return output tokens/s and TTFTs of the long run: 300 requests per slot, without the first tenth and the last twentieth."""
    found = closed_loop(Engine(), slots, lengths(kind, 256, 300 * slots, seed=99), seed=99)
    begin, end = 0.1 * found.steps[-1], 0.95 * found.steps[-1]
    return found.output_throughput(begin, end), found.ttfts[(found.starts >= begin) & (found.starts < end)]


@cache
def measured(kind, slots, each, seed):
    found = closed_loop(Engine(), slots, lengths(kind, 256, each * slots, seed), seed=seed)
    return found, course(found.requests(), concurrency=slots)


def seeds(slots):
    return range(3 if slots == 512 else 6)


@pytest.mark.parametrize("slots", SLOTS)
@pytest.mark.parametrize("kind", ["fixed", "uniform"])
@pytest.mark.parametrize("each", [3, 5])
def test_throughput_is_that_of_the_long_run_within_two_percent(kind, slots, each):
    known, _ = truth(kind, slots)
    found = [measured(kind, slots, each, seed)[1].steady.output_throughput / known for seed in seeds(slots)]
    assert np.mean(found) == pytest.approx(1.0, abs=0.02)
    assert max(abs(one - 1) for one in found) < 0.03


@pytest.mark.parametrize("slots", SLOTS)
def test_total_throughput_of_equal_outputs_is_that_of_the_long_run_within_one_percent(slots):
    output, _ = truth("fixed", slots)
    known = output * (256 + 1024) / 256
    found = [measured("fixed", slots, 3, seed)[1].steady.total_throughput / known for seed in seeds(slots)]
    assert np.mean(found) == pytest.approx(1.0, abs=0.01)
    assert max(abs(one - 1) for one in found) < 0.02


@pytest.mark.parametrize("slots", [8, 32])
def test_whole_run_of_uneven_outputs_is_too_slow_but_not_steady_state(slots):
    known, _ = truth("uniform", slots)
    run, found = measured("uniform", slots, 3, 0)
    assert run.outputs.sum() / run.ends.max() < 0.9 * known
    assert found.steady.output_throughput == pytest.approx(known, rel=0.03)


@pytest.mark.parametrize("slots", [128, 512])
def test_p95_of_ttft_is_that_of_the_long_run_within_five_percent(slots):
    _, ttfts = truth("uniform", slots)
    found = [measured("uniform", slots, 10, seed)[1].steady.ttft_ms.p95 for seed in seeds(slots)]
    assert np.mean(found) == pytest.approx(1000 * np.percentile(ttfts, 95), rel=0.05)


def test_start_burst_is_in_the_whole_run_alone():
    run, found = measured("fixed", 512, 3, 0)
    assert run.ttfts[:512].mean() > 5 * run.ttfts[512:].mean()
    assert np.percentile(run.ttfts, 95) > 5 * found.steady.ttft_ms.p95 / 1000


def test_percentiles_of_few_requests_are_left_out_with_a_reason():
    _, found = measured("uniform", 8, 5, 0)
    assert found.steady.ttft_ms.count == found.steady.requests < 72
    assert found.steady.ttft_ms.p50 is not None
    assert (found.steady.ttft_ms.p95, found.steady.ttft_ms.p99, found.steady.ttft_ms.p95_range) == (None, None, None)
    assert found.steady.too_few.startswith(f"{found.steady.requests} requests")


def test_waves_of_equal_requests_leave_no_interval():
    for kind, alone in (("fixed", False), ("uniform", True)):
        _, found = measured(kind, 128, 10, 2)
        assert (found.steady.waves < 0.1) == alone
        assert (found.steady.ttft_ms.p95_range is not None) == alone, kind


def test_spread_lengths_need_more_requests_until_every_slot_is_steady():
    _, found = measured("lognormal", 32, 3, 0)
    assert found.steady is None
    assert found.steady_missing


def test_needed_values_follow_from_the_binomial_distribution():
    assert [steady.needed(percentile) for percentile in (50, 95, 99)] == [6, 72, 368]
    for percentile in (50, 95, 99):
        count, p = steady.needed(percentile), max(percentile, 100 - percentile) / 100
        assert p**count <= 0.025 < p ** (count - 1)


def test_interval_contains_the_true_percentile_in_95_of_100_samples():
    rng, known = np.random.default_rng(0), -math.log(0.05)
    inside = 0
    for _ in range(2000):
        low, high = steady.interval(rng.exponential(size=200), 95)
        inside += low <= known <= high
    assert 0.93 < inside / 2000 < 0.99


def test_open_loop_leaves_one_mean_duration_at_each_end():
    run = open_loop(Engine(), 4.0, lengths("uniform", 256, 2000, 0))
    found = course(run.requests(), rate=4.0).steady
    mean = (run.ends - run.starts).mean()
    assert found.begin_s == pytest.approx(mean)
    assert found.end_s == pytest.approx(run.ends.max() - run.starts[0] - mean)
    assert found.cycles is None
    assert found.request_throughput == pytest.approx(4.0, rel=0.05)
    known = run.output_throughput(run.starts[0] + found.begin_s, run.starts[0] + found.end_s)
    assert found.output_throughput == pytest.approx(known, rel=1e-6)


def slots_of_two(count=4, begin=0.0):
    """Return ``count`` requests each of two slots: one a second for 0.9 s, in the second slot 0.25 s later."""
    starts = sorted(begin + number + late for number in range(count) for late in (0.0, 0.25))
    return [request(start=start, latency=0.9, ttft=0.4, itls=(0.25, 0.25)) for start in starts]


def test_steady_state_lies_between_first_ends_and_last_start():
    found = course(slots_of_two(), concurrency=2).steady
    assert (found.begin_s, found.end_s, found.cycles) == pytest.approx((1.15, 3.9, 2))
    # Requests that start at 1.25, 2, 2.25, 3 and 3.25 s.
    assert found.requests == 5
    assert (found.output_throughput, found.total_throughput, found.request_throughput) == pytest.approx((6.0, 26.0, 2.0))
    assert found.in_flight == pytest.approx((2.55 + 2.45) / 2.75)


def test_each_client_process_has_its_own_slots():
    parts = [slots_of_two(begin=begin) for begin in (0.0, 0.1)]
    clients = tuple(as_client(raw_of(part)) for part in parts)
    found = course([one for part in parts for one in part], concurrency=4, clients=clients).steady
    assert (found.begin_s, found.end_s) == pytest.approx((1.25, 3.9))
    assert found.output_throughput == pytest.approx(12.0)


def test_slots_that_start_late_have_their_first_requests_first_in_the_list():
    late = [request(start=start, latency=0.9, ttft=0.4, itls=(0.25, 0.25)) for start in (0.0, 3.25, 1.0, 2.0, 3.0, 4.0, 4.25, 5.0, 5.25)]
    found = course(late, concurrency=2).steady
    # The second slot begins at 3.25 s. Windows: 3.25 to 5.25 s.
    assert (found.begin_s, found.end_s, found.cycles) == pytest.approx((4.15, 5.9, 2))
    assert found.output_throughput == pytest.approx(6.0)


@pytest.mark.parametrize(
    ("requests", "concurrency", "rate"),
    [
        (slots_of_two(1), 2, None),
        (slots_of_two(2), 2, None),
        (slots_of_two(2), None, None),
        (slots_of_two(2), None, math.inf),
        (slots_of_two(1), None, 1.0),
        ([request(start=0.0, latency=0.0, ttft=0.0, itls=())] * 9, 2, None),
    ],
)
def test_load_without_steady_state_has_a_reason_instead(requests, concurrency, rate):
    found = course(requests, concurrency, rate)
    assert (found.steady, bool(found.steady_missing)) == (None, True)


def test_load_without_completed_requests_has_no_course():
    assert steady.course(raw_of([request(ok=False, error="refused")]), load()) is None


def test_chunks_of_several_tokens_give_the_same_throughput():
    run, single = measured("fixed", 32, 5, 0)
    found = course(run.requests(chunk=20), concurrency=32)
    assert found.tokens_per_chunk == pytest.approx(255 / 13)
    assert found.steady.output_throughput == pytest.approx(single.steady.output_throughput, rel=0.01)
    assert single.tokens_per_chunk == 1.0
    assert single.peak_output_throughput > single.steady.output_throughput


def test_peak_counts_tokens_of_one_second():
    found = course([request(start=0.0, latency=2.5, ttft=0.5, itls=(1.0, 1.0), output_tokens=5)], concurrency=1)
    # One token at 0.5 s, two each at 1.5 and 2.5 s.
    assert found.peak_output_throughput == pytest.approx(2.0)
    assert (found.in_flight_most, found.in_flight_mean, found.tokens_per_chunk) == (1, 1.0, 2.0)


def test_request_without_second_chunk_has_no_tokens_per_chunk():
    found = course([request(start=0.0, latency=0.5, ttft=0.5, itls=(), output_tokens=5)], concurrency=1)
    assert (found.tokens_per_chunk, found.peak_output_throughput) == (None, 5.0)


def test_judgement_and_record_hold_the_course():
    raw = raw_of([request(number) for number in range(8)], duration=3 * EVERY_S + EACH_S)
    judgement = judge(raw, point(requests=8), thresholds(), FINE)
    assert judgement.course.steady.requests == 6, "without the first request of both slots"
    broken = judge(raw, point(requests=9), thresholds(), FINE)
    assert (broken.verdict, broken.course) == ("INVALID", None)


@pytest.mark.parametrize(("outputs", "least"), [([3] * 6, 3.0), ([2, 3, 4] * 2, 3.0), ([1, 1, 1, 1, 1, 13], 6.0)])
def test_long_outputs_need_more_requests_per_slot(outputs, least):
    good = [request(number, output_tokens=count) for number, count in enumerate(outputs)]
    assert steady.least_per_slot(3.0, good) == least


def test_spread_outputs_make_point_suspect_at_three_per_slot():
    requests = [replace(one, output_tokens=13 if number == 3 else 1) for number, one in enumerate(slots_of_two(3))]
    found = judge(raw_of(requests), point(requests=6), thresholds(min_requests_per_slot=3, output_tokens_tolerance=1.0), FINE)
    assert "few_requests_per_slot" in codes(found, "SUSPECT")
