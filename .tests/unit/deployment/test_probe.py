"""A server is ready after a completion with an output token; another program on the port is an error at once."""

from __future__ import annotations

import httpx
import pytest

from builders.answering import server
from servemark.deployment.probe import ServerProbe, require_closed
from servemark.errors import StageFailed

GOOD = (200, {"usage": {"completion_tokens": 1}})


def test_probe_requests_health_models_and_one_token():
    with server(**{"v1/completions": GOOD}) as (handler, url):
        probe = ServerProbe(url, "tiny", "the-key")
        assert [probe(), probe()] == ["healthy", "ready"]
    assert [asked[:2] for asked in handler.asked] == [(path, "Bearer the-key") for path in ("/health", "/v1/models", "/v1/completions")]
    body = handler.asked[2][2]
    assert (body["model"], body["max_tokens"], body["ignore_eos"]) == ("tiny", 1, True)


@pytest.mark.parametrize(
    ("paths", "words"),
    [
        ({"health": (503, "")}, "/health returns 503"),
        ({"v1/models": (503, "{}")}, "/v1/models returns 503"),
        ({"v1/completions": (500, "EngineDeadError")}, "500: EngineDeadError"),
        ({"v1/completions": (200, {"usage": {"completion_tokens": 0}})}, "no output token"),
        ({"v1/completions": (200, {})}, "no output token"),
    ],
)
def test_a_server_that_is_not_ready_yet_is_described(paths, words):
    with server(**{"v1/completions": GOOD} | paths) as (_, url):
        probe = ServerProbe(url, "tiny", "key")
        (answer,) = {probe(), probe()} - {"healthy"}
        assert words in answer and answer != "ready"


@pytest.mark.parametrize(
    ("models", "words"),
    [
        ((401, {"error": "Unauthorized"}), "http://127.0.0.1:"),
        ((200, {"data": [{"id": "llama"}]}), "['llama'], not 'tiny'"),
        ((200, "<html>a router's page</html>"), "[]"),
        ((200, ["tiny"]), "[]"),
        ((200, {"data": None}), "[]"),
        ((404, "nothing here"), "[]"),
    ],
)
def test_another_program_on_our_port_is_an_error_at_once(models, words):
    with server(**{"v1/models": models}) as (_, url):
        probe = ServerProbe(url, "tiny", "key")
        assert probe() == "healthy"
        with pytest.raises(StageFailed) as failed:
            probe()
    assert failed.value.reason == "foreign_server" and words in failed.value.what
    assert "deployments.NAME.port" in failed.value.do


def test_missing_response_is_no_error():
    with server(health=(0, "")) as (_, url):
        probe = ServerProbe(url, "tiny", "key")
        probe._client.timeout = httpx.Timeout(0.2)
        assert "ReadTimeout" in probe()
    assert "connection" in ServerProbe(url, "tiny", "key")()


def test_probe_ignores_the_proxy_of_the_site(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with server() as (_, url):
        assert ServerProbe(url, "tiny", "key")() == "healthy"


@pytest.mark.parametrize(("status", "closed"), [(401, True), (200, False), (403, False), (404, False), (500, False)])
def test_only_401_counts_as_refused(status, closed):
    with server(metrics=(status, "")) as (handler, url):
        if closed:
            require_closed(f"{url}/metrics")
        else:
            with pytest.raises(StageFailed, match=str(status)) as refused:
                require_closed(f"{url}/metrics")
            assert refused.value.reason == "open_door"
    assert handler.asked == [("/metrics", None)], "the request had no key"
    require_closed(f"{url}/metrics")  # the server has ended: nothing is exposed


def test_route_without_a_response_is_not_taken_for_refused():
    with server(metrics=(0, "")) as (_, url), pytest.raises(StageFailed) as refused:
        require_closed(f"{url}/metrics", timeout_s=0.2)
    assert refused.value.reason == "startup_timeout"
