"""Requests in flight as a step function."""

import pytest

from builders.requests import request
from servemark.measurement.in_flight import InFlight


def test_counts_follow_starts_and_ends():
    found = InFlight.of([request(start=10.0, latency=4.0), request(start=11.0, latency=1.0), request(start=12.0, latency=2.0)])
    # At 12 s one request ends and the next one takes its slot.
    assert found.moments.tolist() == [10.0, 11.0, 12.0, 12.0, 14.0, 14.0]
    assert found.counts.tolist() == [1, 2, 1, 2, 1, 0]
    assert found.most == 2


def test_mean_of_the_whole_time_follows_littles_law():
    found = InFlight.of([request(start=0.0, latency=3.0), request(start=1.0, latency=1.0)])
    assert found.mean() == pytest.approx((3.0 + 1.0) / 3.0)


def test_mean_counts_only_the_given_time():
    found = InFlight.of([request(start=0.0, latency=3.0), request(start=1.0, latency=1.0)])
    assert found.mean(1.0, 2.0) == pytest.approx(2.0)
    assert found.mean(2.5, 4.5) == pytest.approx(0.25)
    assert found.mean(-2.0, 2.0) == pytest.approx(0.75)


def test_mean_of_no_time_is_an_error():
    with pytest.raises(ValueError, match="no time"):
        InFlight.of([request()]).mean(5.0, 5.0)
