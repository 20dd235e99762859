"""Ready is a completion with a token in it; a dead process, a silent log and a deadline end the wait, each with its reason."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest
import report_data

from servemark.deployment import readiness
from servemark.deployment.readiness import ServerProbe, Waiting, poll
from servemark.errors import StageFailed
from servemark.records import Cluster, Endpoint, Failure, Startup
from servemark.startup_log import StartupLog


class Clock:
    """Time that passes only by sleeping."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


def wait(answers, moves=lambda now: True, dies_at=None, start_s=10.0, stall_s=5.0, begin=100.0):
    """``poll`` with a probe that gives the answers in turn, the last one for ever."""
    clock, told = Clock(), []
    left = list(answers)

    def probe():
        return left.pop(0) if len(left) > 1 else left[0]

    return poll(
        probe,
        lambda: moves(clock.now),
        lambda: dies_at is not None and clock.now >= dies_at,
        start_s=start_s,
        stall_s=stall_s,
        begin=begin,
        tell=told.append,
        clock=clock,
        sleep=clock.sleep,
    ), told


def test_the_times_to_health_and_to_the_first_token_count_from_the_process_start():
    waited, told = wait(["no connection yet"] * 4 + ["healthy", "a completion answers 500", "ready"], begin=98.0)
    assert (waited.seconds_to_health, waited.seconds_to_first_token) == (3.0, 3.5)
    assert told == ["no connection yet"] * 4 + ["healthy", "a completion answers 500"]


def test_ready_at_once_is_healthy_as_well():
    waited, _ = wait(["ready"])
    assert (waited.seconds_to_health, waited.seconds_to_first_token) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("given", "reason", "words"),
    [
        ({"dies_at": 101.0}, "server_exited", "ended before it was ready"),
        ({"start_s": 3.0}, "startup_timeout", "not ready after 3 s (last: healthy)"),
        ({"moves": lambda now: now < 101}, "startup_stalled", "silent for 5 s (last: healthy)"),
        ({"moves": lambda now: False, "start_s": 2.0}, "startup_timeout", "not ready after 2 s"),
    ],
)
def test_a_wait_that_cannot_end_well_ends_with_its_reason(given, reason, words):
    with pytest.raises(StageFailed) as failed:
        wait(["healthy"], **given)
    assert failed.value.reason == reason and words in failed.value.what


def test_a_log_that_moves_resets_the_clock_for_silence():
    waited, _ = wait(["no connection yet"] * 30 + ["ready"], moves=lambda now: now % 4 == 0, stall_s=5.0)
    assert waited.seconds_to_first_token == 7.5


class Answers(BaseHTTPRequestHandler):
    """Answers each path with what the test has put there: (status, body)."""

    table: dict[str, tuple[int, object]] = {}
    asked: list[tuple[str, str | None]] = []

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.asked.append((self.path, self.headers.get("Authorization")))
        if length := int(self.headers.get("Content-Length", 0)):
            self.asked[-1] += (json.loads(self.rfile.read(length)),)
        status, body = self.table[self.path]
        if status == 0:
            threading.Event().wait(2)
            return
        data = (body if isinstance(body, str) else json.dumps(body)).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_POST = do_GET


@contextmanager
def server(**paths):
    """A server on a free port; its handler class, whose table can be changed, and its address."""
    table = {"/health": (200, ""), "/v1/models": (200, {"data": [{"id": "tiny"}]})} | {
        f"/{k}": v for k, v in paths.items()
    }
    handler = type("Handler", (Answers,), {"table": table, "asked": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as listening:
        thread = threading.Thread(target=listening.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield handler, f"http://127.0.0.1:{listening.server_address[1]}"
        finally:
            listening.shutdown()
            thread.join()


GOOD = (200, {"usage": {"completion_tokens": 1}})


def test_a_server_is_asked_for_health_its_model_and_one_token():
    with server(**{"v1/completions": GOOD}) as (handler, url):
        probe = ServerProbe(url, "tiny", "the-key")
        assert [probe(), probe()] == ["healthy", "ready"]
    assert [asked[:2] for asked in handler.asked] == [
        (path, "Bearer the-key") for path in ("/health", "/v1/models", "/v1/completions")
    ]
    body = handler.asked[2][2]
    assert (body["model"], body["max_tokens"], body["ignore_eos"]) == ("tiny", 1, True)


@pytest.mark.parametrize(
    ("paths", "words"),
    [
        ({"health": (503, "")}, "/health answers 503"),
        ({"v1/models": (503, "{}")}, "/v1/models answers 503"),
        ({"v1/completions": (500, "EngineDeadError")}, "a completion answers 500: EngineDeadError"),
        ({"v1/completions": (200, {"usage": {"completion_tokens": 0}})}, "a completion has no token"),
        ({"v1/completions": (200, {})}, "a completion has no token"),
    ],
)
def test_a_server_that_is_not_ready_yet_is_described(paths, words):
    with server(**{"v1/completions": GOOD} | paths) as (_, url):
        probe = ServerProbe(url, "tiny", "key")
        assert {probe(), probe()} - {"healthy"} == {words}


@pytest.mark.parametrize(
    ("models", "words"),
    [
        ((401, {"error": "Unauthorized"}), "does not know our key"),
        ((200, {"data": [{"id": "llama"}]}), "lists the models ['llama'], not 'tiny'"),
        ((200, "<html>a router's page</html>"), "lists the models []"),
        ((200, ["tiny"]), "lists the models []"),
        ((200, {"data": None}), "lists the models []"),
        ((404, "nothing here"), "lists the models []"),
    ],
)
def test_another_program_on_our_port_is_an_error_at_once(models, words):
    with server(**{"v1/models": models}) as (_, url):
        probe = ServerProbe(url, "tiny", "key")
        assert probe() == "healthy"
        with pytest.raises(StageFailed) as failed:
            probe()
    assert failed.value.reason == "foreign_server" and words in failed.value.what
    assert "another port" in failed.value.do


def test_no_answer_is_no_error():
    with server(health=(0, "")) as (_, url):
        probe = ServerProbe(url, "tiny", "key")
        probe._client.timeout = httpx.Timeout(0.2)
        assert probe() == "no answer (ReadTimeout)"
    assert ServerProbe(url, "tiny", "key")() == "no connection yet"


def test_a_proxy_of_the_site_is_not_asked(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with server() as (_, url):
        assert ServerProbe(url, "tiny", "key")() == "healthy"


def test_only_what_is_new_in_the_log_is_read_and_heartbeats_do_not_count(tmp_path):
    log = tmp_path / "server.log"
    log.write_text("")
    parser = StartupLog()
    tail = readiness._Tail(log, parser)
    assert tail() is False
    with log.open("a") as stream:
        stream.write("(EngineCore pid=7) INFO 03-04 10:00:00 [core.py:1] Initializing a V1 LLM engine\n")
    assert tail() is True and tail() is False
    with log.open("a") as stream:
        stream.write(
            "(APIServer pid=7) DEBUG 03-04 10:00:09 [x.py:1] Waiting for 1 local, 0 remote core engine proc(s) to start.\n"
        )
    assert tail() is False


FAILURE = Failure(stage="start_cluster", reason="ray_exited", detail="Ray ended.")


@pytest.mark.parametrize("failure", [FAILURE, None], ids=["failed before", "replay"])
def test_what_was_not_started_is_not_waited_for(tmp_path, told, failure):
    token = Endpoint(deployment="plain", failure=failure, replay=failure is None, attempt="a" if failure else None)
    waiting = Waiting(
        report_data.plan(), Cluster(deployment="plain"), token, start_s=1, stall_s=1, stop_s=1, progress=told
    )
    ready, startup = waiting.run(tmp_path)
    assert (ready.failure, ready.replay, ready.url) == (failure, failure is None, None)
    assert startup == Startup(deployment="plain", failure=failure, attempt="a" if failure else None)
    assert told.words == []
