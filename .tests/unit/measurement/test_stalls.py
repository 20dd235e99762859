"""Stops: times in which requests were in flight and none received a token."""

from __future__ import annotations

import pytest

from builders.requests import request
from servemark.measurement import stalls


def stream(start: float, *chunks: float, ttft: float = 0.1):
    return request(start=start, ttft=ttft, itls=chunks, latency=ttft + sum(chunks), output_tokens=len(chunks) + 1)


STEPS = (0.05,) * 20
ONE_PAUSE = (*STEPS[:10], 3.0, *STEPS[:10])


def test_stop_of_all_streams_is_counted_once():
    assert stalls.stops([stream(0.0, *ONE_PAUSE), stream(0.01, *ONE_PAUSE)]) == pytest.approx([2.99])


def test_stream_that_goes_on_makes_it_no_stop():
    assert list(stalls.stops([stream(0.0, *ONE_PAUSE), stream(0.0, *STEPS * 5)])) == []


def test_chunks_of_one_wave_are_no_stops():
    assert list(stalls.stops([stream(0.01 * number, *(0.5,) * 20) for number in range(4)])) == []


def test_time_without_requests_in_flight_is_no_stop():
    assert list(stalls.stops([stream(0.0, *STEPS), stream(60.0, *STEPS)])) == []


def test_stop_before_the_next_first_token_begins_with_its_request():
    late = stream(10.0, *STEPS, ttft=5.0)
    assert stalls.stops([stream(0.0, *STEPS), late]) == pytest.approx([5.0])


def test_outputs_of_one_chunk_count_as_tokens():
    short = [stream(0.6 + 0.2 * number) for number in range(20)]
    assert list(stalls.stops([stream(0.0, *ONE_PAUSE), *short])) == []
    assert stalls.stops([]).shape == stalls.stops([stream(0.0)]).shape == (0,)


def test_reason_states_stops_of_all_requests_only():
    streams = [stream(0.0, *ONE_PAUSE) for _ in range(4)]
    (alone,) = stalls.reasons(streams)
    (served,) = stalls.reasons([*streams, *(stream(0.6 + 0.2 * number) for number in range(20))])
    assert "stops: 1, the longest 3.0 s" in alone.detail and "stops:" not in served.detail
