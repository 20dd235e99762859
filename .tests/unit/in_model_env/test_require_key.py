"""The authentication middleware as an ASGI application, without a server or third-party modules."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import subprocess
import sys

import pytest

from servemark.launch import command_lines

KEY = "sm-right-key"
FILE = command_lines.MIDDLEWARE_FOLDER / "servemark_require_key.py"
RIGHT = (b"authorization", f"Bearer {KEY}".encode())


@pytest.fixture
def make(monkeypatch):
    """Make the middleware around an application that records its scopes, with given environment variables."""
    spec = importlib.util.spec_from_file_location("servemark_require_key", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def build(key: str | None = KEY, **variables: str):
        for name in (command_lines.API_KEY, "SERVEMARK_HEALTH_WITHOUT_KEY"):
            monkeypatch.delenv(name, raising=False)
        for name, value in ({} if key is None else {command_lines.API_KEY: key}).items() | variables.items():
            monkeypatch.setenv(name, value)
        passed: list[dict] = []

        async def app(scope, receive, send):
            passed.append(scope)

        return module.RequireKey(app), passed

    return build


def call(middleware, scope) -> list[dict]:
    """Return the messages that the middleware itself sends."""
    sent: list[dict] = []

    async def receive():
        return {"type": f"{scope['type']}.connect"}

    async def send(message):
        sent.append(message)

    asyncio.run(middleware(scope, receive, send))
    return sent


def http(method="POST", path="/v1/completions", headers=()) -> dict:
    return {"type": "http", "method": method, "path": path, "headers": list(headers)}


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"])
@pytest.mark.parametrize("path", ["/v1/models", "/health", "/metrics", "/invocations", "/tokenize", "/docs", "//", "*"])
def test_every_method_and_route_needs_the_key(make, method, path):
    middleware, passed = make()
    start, body = call(middleware, http(method, path))
    assert start["status"] == 401 and passed == []
    headers = dict(start["headers"])
    assert headers[b"content-length"] == str(len(body["body"])).encode()
    assert headers[b"www-authenticate"] == b"Bearer"
    error = json.loads(body["body"])["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["code"] == "invalid_api_key"
    assert KEY not in body["body"].decode()
    assert call(middleware, http(method, path, [RIGHT])) == [] and len(passed) == 1


@pytest.mark.parametrize(
    ("headers", "admitted"),
    [
        ([RIGHT], True),
        ([(b"Authorization", RIGHT[1])], True),
        ([(b"AUTHORIZATION", b"bearer " + KEY.encode())], True),
        ([(b"authorization", b"Bearer   " + KEY.encode() + b" ")], True),
        ([(b"host", b"x"), RIGHT, (b"accept", b"*/*")], True),
        ([(b"authorization", b"Bearer wrong")], False),
        ([(b"authorization", b"Bearer " + KEY.encode() + b"x")], False),
        ([(b"authorization", b"Bearer " + KEY[:-1].encode())], False),
        ([(b"authorization", b"Bearer " + KEY.upper().encode())], False),
        ([(b"authorization", b"Bearer")], False),
        ([(b"authorization", b"Bearer ")], False),
        ([(b"authorization", b"")], False),
        ([(b"authorization", b"Bearer \xff\xfe")], False),
        ([(b"authorization", KEY.encode())], False),
        ([(b"authorization", b"Basic " + KEY.encode())], False),
        ([(b"x-api-key", KEY.encode())], False),
        ([(b"proxy-authorization", RIGHT[1])], False),
        ([RIGHT, RIGHT], False),
        ([(b"authorization", b"Bearer wrong"), RIGHT], False),
        ([RIGHT, (b"Authorization", b"Bearer wrong")], False),
    ],
)
@pytest.mark.parametrize("kind", ["http", "websocket"])
def test_request_needs_exactly_one_header_with_the_right_key(make, kind, headers, admitted):
    middleware, passed = make()
    sent = call(middleware, http(headers=headers) | {"type": kind})
    assert bool(passed) == admitted
    assert [message["type"] for message in sent] == (
        [] if admitted else ["http.response.start", "http.response.body"] if kind == "http" else ["websocket.close"]
    )


def test_key_in_the_query_is_ignored(make):
    middleware, passed = make()
    assert call(middleware, http() | {"query_string": f"api_key={KEY}".encode()})[0]["status"] == 401
    assert passed == []


def test_lifespan_of_the_server_needs_no_key(make):
    middleware, passed = make()
    assert call(middleware, {"type": "lifespan"}) == [] and len(passed) == 1


@pytest.mark.parametrize("key", [None, "", "  "])
def test_middleware_without_a_key_does_not_load(make, key):
    with pytest.raises(RuntimeError, match=command_lines.API_KEY):
        make(key)


@pytest.mark.parametrize(
    ("value", "scope", "admitted"),
    [
        ("1", http("GET", "/health"), True),
        ("0", http("GET", "/health"), False),
        ("", http("GET", "/health"), False),
        ("1", http("POST", "/health"), False),
        ("1", http("GET", "/health/"), False),
        ("1", http("GET", "/health/x"), False),
        ("1", http("GET", "/v1/models"), False),
        ("1", http("GET", "/metrics"), False),
        ("1", http("GET", "/health") | {"type": "websocket"}, False),
    ],
)
def test_replica_behind_the_router_has_only_health_open(make, value, scope, admitted):
    middleware, passed = make(SERVEMARK_HEALTH_WITHOUT_KEY=value)
    call(middleware, scope)
    assert bool(passed) == admitted


def test_folder_has_one_module_that_needs_only_the_standard_library():
    assert [path.name for path in command_lines.MIDDLEWARE_FOLDER.glob("*.py")] == [FILE.name]
    code = f"import sys; sys.path.insert(0, {str(FILE.parent)!r}); import servemark_require_key"
    subprocess.run([sys.executable, "-I", "-S", "-B", "-c", code], check=True)
