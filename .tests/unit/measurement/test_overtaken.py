"""Requests that something held before the servers read them make a point SUSPECT; the queue of the servers does not."""

from dataclasses import replace

import pytest

from builders.paths import ROOT
from builders.requests import request
from builders.simulated_engine import Engine, closed_loop, lengths
from servemark.measurement import overtaken
from servemark.measurement.in_flight import InFlight
from servemark.measurement.raw import read_raw
from servemark.measurement.thresholds import stored
from servemark.measurement.verdict import ServerFacts, judge
from servemark.report.gather import read
from servemark.verification.unpack import unpacked

OVERTAKEN = "requests_overtaken"
SLOTS = 64
MARLIN = ROOT / "docs" / "benchmarks" / "archives" / "two-gpus-engines-marlin.tar.zst"
SLOW = Engine(per_prompt_token_s=1e-4)
"""Reads 64 prompts of 1024 tokens in 6.6 s, so that many waits are longer than 2 s."""


def codes(requests, cached=None):
    return [one.code for one in overtaken.reasons(requests, InFlight.of(requests).most, cached)]


@pytest.mark.parametrize("kind", ["fixed", "uniform", "lognormal"])
def test_queue_of_an_engine_overtakes_no_request(kind):
    requests = closed_loop(SLOW, SLOTS, lengths(kind, 256, 4 * SLOTS, seed=1)).requests()
    assert max(one.ttft for one in requests) > 5
    assert codes(requests) == []


@pytest.mark.parametrize(("waves", "expected"), [(0.2, []), (1.5, [OVERTAKEN])])
def test_request_that_was_held_for_more_than_a_wave_is_overtaken(waves, expected):
    requests = closed_loop(Engine(), SLOTS, lengths("fixed", 1024, 4 * SLOTS, seed=1)).requests()
    held_s = waves * requests[SLOTS].latency
    late = replace(requests[SLOTS], ttft=requests[SLOTS].ttft + held_s, latency=requests[SLOTS].latency + held_s)
    assert codes([*requests[:SLOTS], late, *requests[SLOTS + 1 :]]) == expected


def test_pause_of_the_server_overtakes_no_request():
    """All requests wait, and in the order in which they started."""
    requests = [request(start=0.01 * number, ttft=20.0 + 0.04 * number, itls=(0.03, 0.03)) for number in range(SLOTS)]
    requests += [request(start=60.0 + 0.1 * number, ttft=0.05, itls=(0.03, 0.03)) for number in range(4 * SLOTS)]
    assert codes(requests) == []


def late_among_short(tokens=100, others=400):
    """Return one request that waits 12 s, and short ones that another engine serves meanwhile."""
    short = [request(start=1.0 + 0.05 * number, ttft=0.05, itls=(0.03, 0.03), input_tokens=100) for number in range(others)]
    return [request(start=0.5, ttft=12.0, itls=(0.03, 0.03), input_tokens=tokens), *short]


@pytest.mark.parametrize(("tokens", "expected"), [(40_000, []), (2_000, []), (100, [OVERTAKEN])])
def test_long_prompt_of_one_engine_explains_its_own_wait(tokens, expected):
    assert codes(late_among_short(tokens)) == expected


@pytest.mark.parametrize(("others", "expected"), [(3, []), (40, [OVERTAKEN])])
def test_fewer_than_four_later_requests_do_not_count(others, expected):
    assert codes(late_among_short(others=others)) == expected


@pytest.mark.parametrize(("cached", "expected"), [(0.5, []), (0.01, [OVERTAKEN]), (None, [OVERTAKEN])])
def test_load_with_prompts_in_the_prefix_cache_is_left_out(cached, expected):
    assert codes(late_among_short(), cached) == expected


@pytest.mark.parametrize("requests", [[], [request(ttft=10.0)], [request(ttft=0.0), request(ttft=0.0)]], ids=["none", "one", "no wait"])
def test_loads_without_a_queue_overtake_no_request(requests):
    assert list(overtaken.reasons(requests, len(requests), None)) == []


def test_held_request_of_a_measured_point_is_found_from_format_5_on():
    with unpacked(MARLIN) as archive:
        found = read(archive.folder)
        (record,) = found.measurements
        ((point, path),) = found.points
        raw = read_raw(path)
    judged = {since: judge(raw, point.load, stored({}), ServerFacts.of(record), since) for since in (4, 5)}
    assert judged[4].verdict == record.verdict == "VALID"
    assert judged[5].verdict == "SUSPECT"
    assert [one.code for one in judged[5].reasons] == [OVERTAKEN]
