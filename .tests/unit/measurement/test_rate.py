"""The configured rate is compared with the rate sent and with the waits of requests in the client."""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace
from itertools import accumulate

import pytest

from builders.paths import FIXTURES
from builders.requests import FINE, as_client, codes, point, raw_of, request, thresholds
from servemark.measurement.raw import read_raw
from servemark.measurement.verdict import judge

RATE, EACH_S = 20.0, 0.4


def arrivals(count: int, rate: float, burstiness: float = 1.0, seed: int = 1) -> list[float]:
    """Return arrivals like vLLM's client: gamma gaps, scaled so that the last request is due ``count`` / ``rate`` after the beginning."""
    draw = random.Random(seed)
    due = list(accumulate(draw.gammavariate(burstiness, 1.0) for _ in range(count)))
    return [moment * count / rate / due[-1] for moment in due]


def load(due: list[float], places: int | None = None, begin: float = 50.0, told: bool = True) -> list:
    """Return requests of ``EACH_S`` that are sent when they are due and a slot is free."""
    free = [0.0] * (places or len(due))
    sent = []
    for number, moment in enumerate(due):
        place = free.index(min(free))
        start = max(moment, free[place])
        free[place] = start + EACH_S
        sent.append(request(number + round(1e4 * begin), start=begin + start, latency=EACH_S, waited=start - moment if told else None))
    return sent


def result(requests: list, begin: float = 50.0):
    return raw_of(requests, duration=max(one.start + one.latency for one in requests) - begin)


def judged(raw, rate: float | None = RATE, concurrency: int | None = None, limits=None, **asked):
    wanted = point(requests=len(raw.requests), concurrency=concurrency, request_rate=rate, **asked)
    return judge(raw, wanted, limits or thresholds(min_requests_per_slot=0), FINE)


@pytest.mark.parametrize(
    ("file", "concurrency", "found"),
    [
        ("rate-kept", None, set()),
        ("rate-not-kept", 4, {"rate_not_kept"}),
        ("rate-near-limit", 11, {"rate_not_kept"}),
    ],
)
def test_real_results_of_a_rate_with_and_without_a_limit(file, concurrency, found):
    raw = read_raw(FIXTURES / f"bench-0.32.0-{file}.json")
    judgement = judged(raw, concurrency=concurrency, input_tokens=64, output_tokens=4)
    assert codes(judgement, "SUSPECT") == codes(judgement) == found
    assert judgement.figures is not None


def numbers(detail: str) -> list[str]:
    return re.findall(r"\d[\d.]*%?", detail)


def test_the_detail_has_the_rates_the_waits_and_the_limit():
    (reason,) = judged(read_raw(FIXTURES / "bench-0.32.0-rate-not-kept.json"), concurrency=4, input_tokens=64, output_tokens=4).reasons
    assert numbers(reason.detail) == ["20", "8.728", "56%", "1936", "23", "4"]
    assert all(key in reason.detail for key in ("`concurrency`", "`clients`", "`request_rate`"))


def test_limit_reached_at_times_is_found_by_waits_only():
    raw = read_raw(FIXTURES / "bench-0.32.0-rate-near-limit.json")
    (reason,) = judged(raw, concurrency=11, input_tokens=64, output_tokens=4).reasons
    assert numbers(reason.detail)[:3] == ["20", "19.99", "67"]
    untold = replace(raw, requests=tuple(replace(one, waited=None) for one in raw.requests), clients=())
    assert judged(untold, concurrency=11, input_tokens=64, output_tokens=4).reasons == ()


@pytest.mark.parametrize("burstiness", [0.05, 0.3, 1.0, 20.0])
@pytest.mark.parametrize("count", [4, 30, 400])
def test_free_client_keeps_rate_with_any_burstiness_and_count(burstiness, count):
    for seed in range(20):
        assert judged(result(load(arrivals(count, RATE, burstiness, seed))), limits=EASY).reasons == ()


EASY = thresholds(min_requests_per_slot=0, min_duration_s=0)


@pytest.mark.parametrize(("places", "suspect"), [(7, True), (8, False)])
def test_limit_always_reached_is_found_by_starts_alone(places, suspect):
    """Seven slots of 0.4 s allow 17.5 requests/s, eight slots 20, with equal gaps and a tolerance of 5 %."""
    even = [number / RATE for number in range(1, 401)]
    judgement = judged(result(load(even, places, told=False)), concurrency=places)
    assert codes(judgement) == ({"rate_not_kept"} if suspect else set())
    assert all("17.5" in reason.detail and "waited" not in reason.detail for reason in judgement.reasons)


def test_remedy_without_limit_does_not_name_concurrency():
    late = [number / 15 for number in range(1, 61)]
    (reason,) = judged(result(load(late, told=False))).reasons
    assert numbers(reason.detail) == ["20", "15", "25%"]
    assert "`concurrency`" not in reason.detail and "`clients`" in reason.detail


@pytest.mark.parametrize(("deviation", "suspect"), [(0.04, True), (0.06, False), (1.0, False)])
def test_deviation_of_the_rate_is_configured(deviation, suspect):
    slow = result(load([number / 19 for number in range(1, 61)], told=False))
    limits = EASY.model_copy(update={"max_rate_deviation": deviation})
    assert ("rate_not_kept" in codes(judged(slow, limits=limits))) is suspect


@pytest.mark.parametrize(
    ("wait_s", "ttft_s", "suspect"),
    [(0.004, 0.01, False), (0.006, 0.01, True), (0.009, 0.2, False), (0.011, 0.2, True)],
)
def test_wait_is_compared_with_ttft_above_free_wait(wait_s, ttft_s, suspect):
    due = arrivals(60, RATE)
    sent = [request(number, start=50 + moment, ttft=ttft_s, waited=wait_s) for number, moment in enumerate(due)]
    assert ("rate_not_kept" in codes(judged(result(sent)))) is suspect


@pytest.mark.parametrize("rate", [None, float("inf")])
def test_waits_do_not_count_without_a_rate(rate):
    assert judged(result(load([0.0] * 40, places=4)), rate=rate, concurrency=4).reasons == ()


def test_each_process_must_keep_its_share_of_the_rate():
    def both(second_rate: float):
        parts = [load(arrivals(50, RATE / 2, seed=1)), load(arrivals(50, second_rate, seed=2), begin=50.3)]
        halves = tuple(as_client(result(part, begin)) for part, begin in zip(parts, (50.0, 50.3), strict=True))
        raw = result([one for part in parts for one in part])
        return codes(judged(replace(raw, clients=halves), clients=2, limits=EASY.model_copy(update={"min_client_overlap": 0.0})))

    assert both(RATE / 2) == set()
    assert both(RATE / 2 * 0.85) == {"rate_not_kept"}, "7.5 % fewer in total"


def test_failed_request_does_not_lower_the_rate():
    sent = load(arrivals(40, RATE))
    lost = replace(sent[-1], ok=False, output_tokens=0, ttft=0.0, itls=(), latency=0.0, error="Boom")
    judgement = judged(result([*sent[:-1], lost]), limits=EASY.model_copy(update={"max_failed_fraction": 0.1}))
    assert codes(judgement) == {"requests_failed"}
    half = load(arrivals(40, RATE / 2))
    shares = (as_client(result(half)), as_client(raw_of([lost], duration=2.0)))
    judgement = judged(replace(result([*half, lost]), clients=shares), clients=2, limits=EASY)
    assert "rate_not_kept" not in codes(judgement), "the beginning of the second process is not known"


def test_waits_are_read_from_queue_times(tmp_path):
    path = FIXTURES / "bench-0.32.0-rate-near-limit.json"
    data = json.loads(path.read_text())
    assert [one.waited for one in read_raw(path).requests] == data.pop("queue_times")
    (tmp_path / "old.json").write_text(json.dumps(data))
    assert {one.waited for one in read_raw(tmp_path / "old.json").requests} == {None}
