"""A paused job, client or server makes a point SUSPECT; a silence that the workload explains does not."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from builders.paths import FIXTURES
from builders.requests import FINE, as_client, codes, point, raw_of, request, thresholds
from servemark.measurement import silence
from servemark.measurement.raw import RawResult, read_raw
from servemark.measurement.verdict import judge
from servemark.records import LoadPoint
from servemark.report.gather import read
from servemark.verification.unpack import unpacked

LOOP, RATE = point(requests=16), point(requests=16, request_rate=1.0, concurrency=None)


def stood_still(raw, *stops: tuple[float, float]):
    """Return the result of a load that was paused: ``stops`` are (share of the load's time, seconds)."""
    begin = min(one.start for one in raw.requests)
    moments = [(begin + share * raw.duration_s, seconds) for share, seconds in stops]

    def later(moment: float) -> float:
        return moment + sum(seconds for at, seconds in moments if moment > at)

    def one(item):
        arrivals = [item.start + item.ttft]
        for gap in item.itls:
            arrivals.append(arrivals[-1] + gap)
        start, arrivals = later(item.start), [later(moment) for moment in arrivals]
        itls = tuple(after - before for before, after in pairwise(arrivals))
        return replace(item, start=start, ttft=arrivals[0] - start, itls=itls, latency=arrivals[-1] - start)

    changed = {
        "requests": tuple(one(item) if item.ok else item for item in raw.requests),
        "duration_s": raw.duration_s + sum(seconds for _, seconds in stops),
    }
    if isinstance(raw, RawResult):
        changed["clients"] = tuple(stood_still(client, *stops) for client in raw.clients)
    else:
        changed["cpu"] = tuple((later(moment), used) for moment, used in raw.cpu)
    return replace(raw, **changed)


def unsampled(raw: RawResult) -> RawResult:
    return replace(raw, clients=tuple(replace(client, cpu=()) for client in raw.clients))


def interrupted(raw: RawResult, asked: LoadPoint = LOOP) -> bool:
    return [reason.code for reason in silence.reasons(raw, asked)] == ["interrupted"]


def load(ttfts, itl: float = 0.05, tokens: int = 20, idle: float = 0.0, slots: int = 1, begin: float = 100.0) -> RawResult:
    """Return a closed loop with this number of slots, or successive requests with a pause between them."""
    free = [begin + 0.013 * slot for slot in range(slots)]
    requests = []
    for ttft in ttfts:
        slot = free.index(min(free))
        latency = ttft + itl * (tokens - 1)
        requests.append(request(start=free[slot], ttft=ttft, itls=(itl,) * (tokens - 1), latency=latency, output_tokens=tokens))
        free[slot] += latency + idle
    return raw_of(requests, duration=max(one.start + one.latency for one in requests) - begin)


@pytest.fixture(scope="module")
def h200() -> tuple[RawResult, LoadPoint]:
    """TP4 at concurrency 512: silences of up to 3.6 s, waits of single streams of up to 4.6 s."""
    with unpacked(FIXTURES / "archives" / "h200x4-tp4.tar.zst") as found:
        (item,) = read(found.folder).points
        return read_raw(item.raw), item.point.load


REAL = [("cpu-detailed", LOOP), ("rate-kept", RATE), ("rate-near-limit", RATE), ("rate-not-kept", RATE)]


@pytest.mark.parametrize(("file", "asked"), REAL)
@pytest.mark.parametrize("share", [0.3, 0.55, 0.9])
def test_real_result_is_suspect_only_if_paused(file, asked, share):
    raw = read_raw(FIXTURES / f"bench-0.32.0-{file}.json")
    assert not interrupted(raw, asked)
    assert interrupted(stood_still(raw, (share, 20.0)), asked)
    assert interrupted(unsampled(stood_still(raw, (share, 20.0))), asked), "detected from the requests' times only"


@pytest.mark.parametrize("share", [0.1, 0.5, 0.95])
def test_h200_result_is_suspect_only_if_paused(h200, share):
    raw, asked = h200
    assert not interrupted(raw, asked)
    assert interrupted(unsampled(stood_still(raw, (share, 20.0))), asked)
    assert interrupted(stood_still(raw, (share, 5.0)), asked), "as long as its own waits, but the samples stop too"
    assert not interrupted(stood_still(raw, (share, 1.0)), asked), "less than 1 % of the time"


def test_two_suspensions_do_not_explain_each_other(h200):
    raw, asked = h200
    (reason,) = silence.reasons(unsampled(stood_still(raw, (0.2, 20.0), (0.6, 20.0))), asked)
    assert all(number in reason.detail for number in ("40.0 s", "182.0 s", "22%"))


def test_interrupted_point_is_suspect_and_keeps_results():
    raw = read_raw(FIXTURES / "bench-0.32.0-cpu-detailed.json")
    asked = point(requests=16, concurrency=4, input_tokens=24, output_tokens=8)
    still = stood_still(raw, (0.5, 20.0))
    totals = raw_of(still.requests, still.duration_s).totals
    judgement = judge(replace(still, totals=totals), asked, thresholds(), FINE)
    assert (judgement.verdict, codes(judgement)) == ("SUSPECT", {"interrupted"})
    assert judgement.figures is not None


def test_only_samples_judge_silence_before_first_token():
    raw = read_raw(FIXTURES / "bench-0.32.0-rate-kept.json")
    still = stood_still(raw, (0.0001, 20.0))
    assert interrupted(still, RATE) and not interrupted(unsampled(still), RATE)


def test_detail_names_the_stopped_client_process():
    fine = as_client(load([0.2] * 16))
    still = as_client(stood_still(load([0.2] * 16), (0.5, 6.0)))
    both = raw_of([*fine.requests, *still.requests], duration=still.duration_s)
    (reason,) = silence.reasons(replace(both, clients=(fine, still)), LOOP)
    assert " 2 of 2" in reason.detail


EXPLAINED = {
    "a long prefill each time": (load([9.0, 8.0, 9.5, 8.0, 9.2, 7.9], itl=0.02), LOOP),
    "a cold first prefill": (load([20.0, *[0.2] * 15]), LOOP),
    "slow tokens": (load([6.0] * 8, itl=4.0, tokens=5), LOOP),
    "a wave of long prefills": (load([30.0] * 12, itl=0.03, slots=4), LOOP),
    "a single stream at the end": (load([0.1] * 41, itl=2.5, tokens=6, slots=40), LOOP),
    "a low request rate": (load([0.2] * 16, idle=60.0), RATE),
    "a request rate with long prefills": (load([8.0] * 16, idle=30.0), RATE),
    "prompts of several lengths": (load([3.0, 6.0, 4.0, 5.5, 3.2, 8.9, 4.4, 8.0], itl=0.02), LOOP),
    "one request": (load([5.0]), LOOP),
    "two requests": (load([5.0, 5.0]), LOOP),
    "one token each": (load([5.0, 5.2, 4.8], tokens=1), LOOP),
    "a stall of the machine": (stood_still(load([0.2] * 16), (0.5, 1.5)), LOOP),
}


@pytest.mark.parametrize("name", EXPLAINED)
def test_silence_that_the_workload_explains_is_no_interruption(name):
    assert not interrupted(*EXPLAINED[name])


@pytest.mark.parametrize("name", sorted(EXPLAINED.keys() - {"one token each", "one request"}))
def test_long_pause_is_found_in_each_load(name):
    raw, asked = EXPLAINED[name]
    assert interrupted(stood_still(raw, (0.6, 60.0 + 20 * max(one.ttft for one in raw.requests))), asked)


def test_time_without_requests_is_silence_in_closed_loop_only():
    first, second = load([0.2] * 8), load([0.2] * 8, begin=1000.0)
    apart = raw_of([*first.requests, *second.requests], duration=second.duration_s + 900.0)
    assert interrupted(apart, LOOP) and not interrupted(apart, RATE)
    failed = request(ok=False, ttft=0.0, itls=(), latency=0.0, output_tokens=0, error="cut", start=101.0)
    assert not interrupted(raw_of([*apart.requests, failed], apart.duration_s), LOOP), "its end is not known"


def test_no_completed_request_is_no_silence():
    failed = request(ok=False, ttft=0.0, itls=(), latency=0.0, output_tokens=0, error="cut")
    assert not interrupted(raw_of([failed]), LOOP)
