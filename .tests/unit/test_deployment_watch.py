"""A server is watched while it is measured: dead, replaced, hung, or well."""

from __future__ import annotations

import json
import subprocess
import sys

import httpx
import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from test_deployment_readiness import server

from servemark.deployment.watch import Load, ServerWatch, parse_metrics, scraper
from servemark.records import DaemonState


def metrics() -> str:
    """Two engines' metrics, written by the library that vLLM writes them with."""
    registry = CollectorRegistry()
    labels = ("model_name", "engine")
    gauges = {"running": (3, 1), "waiting": (0, 2), "waiting_by_reason": (70, 80)}
    for name, values in gauges.items():
        gauge = Gauge(f"vllm:num_requests_{name}", "x", labels, registry=registry)
        for engine, value in enumerate(values):
            gauge.labels("tiny", str(engine)).set(value)
    for name, values in {"generation_tokens": (100, 50), "prompt_tokens": (9, 9)}.items():
        counter = Counter(f"vllm:{name}", "x", labels, registry=registry)
        for engine, value in enumerate(values):
            counter.labels("tiny", str(engine)).inc(value)
    return generate_latest(registry).decode()


METRICS = metrics()


def test_several_engines_are_added_up_and_nothing_else_is_counted():
    assert parse_metrics(METRICS) == Load(generated=150.0, open_requests=6.0)
    assert parse_metrics("") == Load(0.0, 0.0)


def test_metrics_are_asked_for_with_the_key():
    with server(metrics=(200, METRICS)) as (handler, url):
        assert scraper(url, "the-key")() == Load(150.0, 6.0)
        handler.table["/metrics"] = (503, "")
        with pytest.raises(httpx.HTTPStatusError):
            scraper(url, "the-key")()
    assert handler.asked == [("/metrics", "Bearer the-key")] * 2


class Scene:
    """A watched process, a clock to be moved, and what /metrics says."""

    def __init__(self, folder):
        self.now = 0.0
        self.says: Load | Exception = Load(0.0, 0.0)
        self.scrapes = 0
        self.process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
        self.folder = folder
        (folder / "daemons").mkdir()
        self.daemon()
        self.watch = ServerWatch(folder, self.scrape, no_progress_s=10.0, clock=lambda: self.now)
        self.watch.begin(self.process.pid)

    def daemon(self, **changes):
        state = DaemonState(name="server", pid=self.process.pid, argv=(), log="server.log", **changes)
        (self.folder / "daemons" / "server.json").write_text(json.dumps(state.model_dump()))

    def scrape(self):
        self.scrapes += 1
        if isinstance(self.says, Exception):
            raise self.says
        return self.says

    def look(self, now, says=None):
        self.now = now
        self.says = says or self.says
        return self.watch()


@pytest.fixture
def scene(tmp_path):
    made = Scene(tmp_path)
    yield made
    made.process.kill()
    made.process.wait()


def test_a_server_that_generates_is_well_and_asked_once_a_second(scene):
    for tenth in range(300):
        assert scene.look(tenth / 10, Load(float(tenth), 4.0)) is None
    assert scene.scrapes == 30
    assert scene.watch.generated == 290.0 and scene.watch.same_process


@pytest.mark.parametrize(
    ("says", "words"),
    [
        (Load(5.0, 3.0), "the server generated nothing with 3 requests open for 11 s"),
        (httpx.ReadTimeout("slow"), "the server did not answer /metrics for 11 s"),
    ],
)
def test_a_server_that_stands_still_with_work_is_hung(scene, says, words):
    assert scene.look(1.0, Load(5.0, 3.0)) is None
    assert scene.look(6.0, says) is None
    assert scene.look(12.0, says) == words
    assert scene.watch.hung == words and scene.watch.died is None


def test_a_server_without_work_is_not_hung(scene):
    for second in range(60):
        assert scene.look(float(second), Load(7.0, 0.0)) is None


def test_one_unanswered_question_is_no_hang(scene):
    assert scene.look(1.0, Load(5.0, 3.0)) is None
    assert scene.look(9.0, httpx.ConnectError("refused")) is None
    assert scene.look(11.0, Load(6.0, 3.0)) is None
    assert scene.look(20.0, Load(6.0, 3.0)) is None


def test_a_server_that_answers_an_error_has_died_inside(scene):
    request = httpx.Request("GET", "http://x/metrics")
    error = httpx.HTTPStatusError("503", request=request, response=httpx.Response(503, request=request))
    assert scene.look(1.0, error) == "the server answers 503 on /metrics"
    assert scene.watch.died and not scene.watch.hung


def test_a_server_that_ended_is_dead_with_its_exit(scene):
    assert scene.look(1.0) is None
    scene.daemon(ended_at="now", signal=9)
    assert scene.look(1.1) == f"server (pid {scene.process.pid}) was ended by signal 9"


def test_a_process_that_is_gone_is_dead_before_the_keeper_says_so(scene):
    scene.process.kill()
    scene.process.wait()
    assert scene.look(1.0) == "the server's process is gone"
    assert not scene.watch.same_process


@pytest.mark.parametrize("pid", [None, 2**22 + 1])
def test_a_process_that_never_was_does_not_serve(scene, pid):
    scene.watch.begin(pid)
    assert not scene.watch.same_process
    assert scene.look(1.0) == "the server's process is gone"


def test_a_server_that_the_keeper_does_not_know_is_gone(scene):
    (scene.folder / "daemons" / "server.json").unlink()
    assert scene.look(1.0) == "the server's process is gone"
