"""Progress of a load point from the servers' counters."""

from __future__ import annotations

import pytest

from builders.loads import load
from servemark.deployment.point_progress import PointProgress
from servemark.deployment.watch import Load


class Scene:
    """A point of 10 requests after 2 warm-ups, and a clock."""

    def __init__(self, told):
        self.told, self.now = told, 0.0
        self.progress = PointProgress(load(requests=10, warmups=2), told, clock=lambda: self.now)

    def at(self, seconds, *args, **more):
        self.now = seconds
        self.told._last = (0.0, "")
        self.progress.report(Load(*args, **more) if args else None)
        return self.told.lines[-1]["point"]


@pytest.fixture
def scene(told):
    return Scene(told)


def test_phases_follow_each_other_and_the_count_begins_at_zero(scene):
    earlier = 700  # requests of earlier points of this deployment
    assert scene.at(0)["phase"] == "starting the client"
    assert scene.at(1, 5000.0, 0.0, earlier)["phase"] == "starting the client"
    warmup = scene.at(2, 5010.0, 1.0, earlier)
    assert (warmup["phase"], warmup["finished"], warmup["warmups"]) == ("warm-up", 0, 2)
    assert scene.at(3, 5020.0, 1.0, earlier + 1)["finished"] == 1
    assert scene.at(4, 5040.0, 0.0, earlier + 2)["phase"] == "warm-up"
    measuring = scene.at(5, 5060.0, 4.0, earlier + 2)
    assert (measuring["phase"], measuring["finished"], measuring["requests"]) == ("measuring", 0, 10)
    assert scene.at(6, 5160.0, 4.0, earlier + 7)["finished"] == 5


def test_rate_covers_last_seconds_and_ttft_excludes_warmups(scene):
    scene.at(0, 0.0, 0.0, 0)
    assert "tokens_per_s" not in scene.at(10, 100.0, 4.0, 2, ttft_s=9.0, ttft_count=2)
    state = scene.at(12, 300.0, 4.0, 5, ttft_s=9.3, ttft_count=5)
    assert (state["tokens_per_s"], state["ttft_ms"]) == (100.0, 100.0)
    assert scene.at(30, 300.0, 4.0, 5, ttft_s=9.3, ttft_count=5).get("tokens_per_s") is None
    assert scene.at(32, 320.0, 4.0, 5, ttft_s=9.3, ttft_count=5)["tokens_per_s"] == 10.0


def test_finished_requests_never_exceed_the_configured_number(scene):
    scene.at(0, 0.0, 0.0, 0)
    assert scene.at(1, 9.0, 1.0, 99)["finished"] == 10
