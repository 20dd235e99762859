"""When the measured requests of a closed loop start: ramp-up and duration."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from servemark.in_model_env import bench_client
from servemark.in_model_env.bench_client import UNSENT, Pace


class Clock:
    """A clock that moves only while somebody sleeps."""

    def __init__(self, monkeypatch):
        self.now = 50.0
        monkeypatch.setattr(asyncio, "sleep", self.sleep)

    def __call__(self):
        return self.now

    async def sleep(self, seconds):
        self.now += max(0.0, seconds)


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


def test_first_requests_of_the_slots_start_evenly_over_the_ramp_up(clock):
    pace, starts = Pace(4, 2.0, None, clock), []

    async def run():
        for _ in range(6):
            assert await pace.may_start()
            starts.append(clock() - 50.0)

    asyncio.run(run())
    assert starts == [0.0, 0.5, 1.0, 1.5, 1.5, 1.5], "later requests start when a slot is free"


def test_no_request_starts_when_the_duration_is_over(clock):
    pace = Pace(2, None, 3.0, clock)

    async def run():
        found = []
        for seconds in (0.0, 2.5, 0.4, 0.1, 5.0):
            clock.now += seconds
            found.append(await pace.may_start())
        return found

    assert asyncio.run(run()) == [True, True, True, False, False]


def test_unsent_request_reaches_no_server_and_warm_ups_are_not_counted(clock):
    sent = []

    async def send(request, session, pbar):
        sent.append(request.request_id)
        clock.now += 2.0
        return SimpleNamespace(success=True)

    async def run():
        unsent = lambda: SimpleNamespace(error="", success=False)  # noqa: E731
        request = bench_client.request_function(send, None, None, None, Pace(1, None, 3.0, clock), unsent)
        return [await request(SimpleNamespace(prompt="a", output_len=1, request_id=name), None) for name in (None, None, "0", "1", "2")]

    outputs = asyncio.run(run())
    assert sent == [None, None, "0", "1"]
    assert outputs[-1].error == UNSENT and not outputs[-1].success
