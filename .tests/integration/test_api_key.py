"""Servers and router refuse requests without the API key: every route is tried, on the stand-in and on real vLLM.

Router and real vLLM come from the environment of the cpu lock, which is built in the checkout's cache if it does not exist. If that
lock cannot be used, these tests skip; with SERVEMARK_REQUIRE_REAL=1 they fail.
"""

from __future__ import annotations

import asyncio
import functools
import os
import platform
import re
import secrets
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import httpx
import psutil
import pytest

from builders.counters import requests_repeated, requests_served
from integration.harness import ROOT, wait_until
from servemark.environments import build as environment
from servemark.environments import lockfiles
from servemark.launch import command_lines
from servemark.machine import network
from servemark.progress import Progress
from servemark.weights.builtin import make
from standin import make_prefix

HOST = "127.0.0.1"
KEY = secrets.token_urlsafe(32)
RIGHT = {"Authorization": f"Bearer {KEY}"}
WITHOUT = (
    {},
    {"Authorization": "Bearer wrong"},
    {"Authorization": "Bearer"},
    {"Authorization": KEY},
    {"X-API-Key": KEY},
)
ASK = {"model": "tiny", "prompt": [3, 5, 7], "max_tokens": 4, "temperature": 0}
# Routes of vllm-router 0.1.17 (its server.rs and the strings of its core), and a few that it would forward.
ROUTER_ROUTES = """POST /generate|POST /v1/chat/completions|POST /v1/completions|POST /rerank|POST /v1/rerank|POST /v1/responses
    POST /v1/embeddings|POST /inference/v1/generate|GET /v1/responses/x|POST /v1/responses/x/cancel|DELETE /v1/responses/x
    GET /v1/responses/x/input|GET /liveness|GET /readiness|GET /health|GET /health_generate|GET /v1/models|GET /get_model_info
    GET /get_server_info|POST /add_worker?url={new}|POST /remove_worker?url={old}|GET /list_workers|POST /flush_cache|GET /get_loads
    POST /workers|GET /workers|GET /workers/x|DELETE /workers/x|GET /metrics|POST /tokenize|POST /invocations|GET /anything
    PUT /anything|DELETE /anything|POST /start_profile|GET //v1/models|HEAD /v1/models|HEAD /health|POST /pause|GET /""".replace(
    "\n    ", "|"
).split("|")
# Valid for every body that the router parses before it checks the key.
BODY = ASK | {
    "prompt": "x",
    "messages": [{"role": "user", "content": "x"}], "input": "x", "query": "x", "documents": ["x"], "text": "x",
    "url": "http://127.0.0.1:9", "token_ids": [3], "sampling_params": {},
}  # fmt: skip


@functools.cache
def real_python() -> str:
    """Return the interpreter of the environment with real vLLM; build the environment if necessary."""
    if sys.version_info[:2] != (3, 11) or platform.machine() != "x86_64":
        _missing("the cpu lock is for CPython 3.11 on x86_64")
    lock, log = lockfiles.table(ROOT / "envs")["cpu"], Path(tempfile.mkdtemp()) / "build.log"
    told = Progress(None, "build_environment")
    built = environment.build("cpu", lock, ROOT / "results" / "cache", log=log, timeout_s=1500, progress=told, watch=None)
    return built.python


def router_python() -> str:
    """Return the interpreter of an environment with vllm-router (SERVEMARK_ROUTER_PYTHON names another one)."""
    python = os.environ.get("SERVEMARK_ROUTER_PYTHON") or real_python()
    if subprocess.run([python, "-c", "import vllm_router.launch_router"], capture_output=True).returncode != 0:
        _missing(f"{python} has no vllm-router")
    return python


def _missing(reason: str) -> None:
    (pytest.fail if os.environ.get("SERVEMARK_REQUIRE_REAL") == "1" else pytest.skip)(reason)


def ask(url: str, route: str, headers: dict[str, str], **body) -> httpx.Response:
    method, path = route.split(" ", 1)
    content = {"json": body or BODY} if method in ("POST", "PUT", "PATCH") else {}
    return httpx.request(method, url + path, headers=headers, timeout=60, trust_env=False, **content)


@contextmanager
def started(argv: list[str], env: dict[str, str], log: Path, url: str, seconds: float) -> Iterator[psutil.Process]:
    """Start a process that listens at ``url``; end it with all its children."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "PYTHONPATH") if name in os.environ}
    with log.open("wb") as stream:
        child = subprocess.Popen(argv, env=kept | env, stdout=stream, stderr=subprocess.STDOUT, start_new_session=True)
    process = psutil.Process(child.pid)
    try:

        def listening() -> bool:
            assert child.poll() is None, log.read_text()[-3000:]
            try:
                httpx.get(url + "/", timeout=60, trust_env=False)
            except httpx.TransportError:
                return False
            return True

        wait_until(listening, seconds, f"{url} listens; {log}")
        yield process
    finally:
        tree = [process, *process.children(recursive=True)] if process.is_running() else []
        # With SIGKILL, vLLM would leave files in /dev/shm.
        with suppress(ProcessLookupError, subprocess.TimeoutExpired):
            child.terminate()
            child.wait(60)
        for member in filter(psutil.Process.is_running, tree):
            member.kill()
        child.wait(60)
        psutil.wait_procs(tree, 60)


@contextmanager
def server(python: str, model: str, folder: Path, *options: str, behind_router: bool = False, seconds: float = 120):
    """Start ``vllm serve`` that requires the API key; yield its address."""
    (port,) = network.find_ports(HOST, 1, start=secrets.randbelow(len(network.PORTS)))
    url = f"http://{HOST}:{port}"
    argv = [
        python,
        "-m",
        command_lines.VLLM,
        "serve",
        model,
        "--served-model-name",
        "tiny",
        "--host",
        HOST,
        "--port",
        str(port),
    ]
    env = {command_lines.API_KEY: KEY, "STANDIN_START_S": "0.1", "STANDIN_TOKEN_S": "0.001", "HF_HUB_OFFLINE": "1",
           "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "GLOO_SOCKET_IFNAME": "lo",
           **command_lines.NO_PROXY, **command_lines.key_environment({}, behind_router=behind_router)}  # fmt: skip
    argv += [*options, *command_lines.key_arguments()]
    with started(argv, env, folder / f"server-{port}.log", url, seconds):
        yield url


@contextmanager
def router(workers: list[str], folder: Path, routing: str = "round_robin"):
    """Start the router with its key check; yield its address and that of its counters."""
    port, metrics = network.find_ports(HOST, 2, start=secrets.randbelow(len(network.PORTS)))
    url = f"http://{HOST}:{port}"
    argv = command_lines.router(router_python(), workers, HOST, port, metrics, routing=routing)
    with started(argv, command_lines.router_environment(), folder / "router.log", url, 120):
        assert httpx.get(url + command_lines.ROUTER_TEST_ROUTE, headers=RIGHT, timeout=60, trust_env=False).status_code == 200
        yield url, f"http://{HOST}:{metrics}/metrics"


@pytest.fixture(scope="module")
def standin_python(tmp_path_factory) -> str:
    return str(make_prefix(tmp_path_factory.mktemp("prefix") / "standin") / "bin" / "python")


@pytest.fixture(scope="module")
def replicas(standin_python, tmp_path_factory):
    with ExitStack() as stack:
        folder = tmp_path_factory.mktemp("replicas")
        yield [stack.enter_context(server(standin_python, "m", folder, behind_router=True)) for _ in range(2)]


@pytest.fixture(scope="module")
def routed(replicas, tmp_path_factory):
    with router(replicas, tmp_path_factory.mktemp("router")) as (url, metrics):
        yield url, metrics


def served(replicas: list[str]) -> list[int]:
    return [requests_served(httpx.get(url + "/metrics", headers=RIGHT, timeout=60).text) for url in replicas]


def in_flight(url: str) -> int:
    """Return how many requests a replica works on."""
    text = httpx.get(url + "/metrics", headers=RIGHT, timeout=60).text
    return int(float(re.search(r"^vllm:num_requests_running\S* (\S+)$", text, re.MULTILINE)[1]))


def statuses(url: str, routes: list[str]) -> dict[str, Counter]:
    return {route: Counter(ask(url, route, headers).status_code for headers in WITHOUT) for route in routes}


def test_every_route_of_standin_server_requires_the_key(standin_python, tmp_path):
    routes = ["GET /health", "GET /metrics", "GET /v1/models", "POST /v1/completions", "POST /tokenize", "GET /version",
              "GET /x", "OPTIONS /v1/completions", "HEAD /health", "PUT /x", "DELETE /x", "PATCH /x"]  # fmt: skip
    with server(standin_python, "m", tmp_path) as url:
        assert statuses(url, routes) == {route: Counter({401: len(WITHOUT)}) for route in routes}
        assert ask(url, "GET /health", RIGHT).status_code == 200
        assert ask(url, "POST /v1/completions", RIGHT, **ASK).status_code == 200


def test_replica_without_key_serves_only_its_health(replicas):
    assert ask(replicas[0], "GET /health", {}).status_code == 200
    for route in ("HEAD /health", "POST /health", "GET /metrics", "GET /v1/models", "POST /v1/completions"):
        assert ask(replicas[0], route, {}).status_code == 401, route


@pytest.mark.parametrize("route", ROUTER_ROUTES)
def test_every_route_of_router_requires_the_key(routed, replicas, route):
    route = route.strip().format(new="http://127.0.0.1:9", old=replicas[0])
    for headers in WITHOUT:
        answer = ask(routed[0], route, headers)
        assert answer.status_code == 401, (headers, answer.text)
        # The router's own words: a replica's refusal would mean that the router forwarded the request.
        assert route.startswith("HEAD") or "valid API key" in answer.text


def test_router_responses_before_the_key_check_are_harmless(routed, replicas):
    """The router responds without a key check to an unknown method, a CORS preflight and a malformed body."""
    before = served(replicas)
    for route, status in (("GET /v1/completions", 405), ("DELETE /v1/models", 405), ("OPTIONS /v1/completions", 200)):
        assert ask(routed[0], route, {}).status_code == status
    for content, kind, status in (("[]", "json", 422), ("{", "json", 400), ("{}", "text", 415)):
        headers = {"Content-Type": f"application/{kind}"}
        posted = httpx.post(routed[0] + "/v1/completions", content=content, headers=headers, timeout=60, trust_env=False)
        assert posted.status_code == status
    assert served(replicas) == before
    assert len(ask(routed[0], "GET /list_workers", RIGHT).json()["urls"]) == len(replicas)


def test_docs_explain_the_address_in_the_routers_refusal(routed):
    (named,) = re.findall(r"https?://\S+", ask(routed[0], "POST /v1/completions", {}).text)
    assert named in (ROOT / "docs" / "security.md").read_text()


def test_router_counters_hold_no_key_and_no_prompt(routed):
    ask(routed[0], "POST /v1/completions", RIGHT, **ASK | {"prompt": "planted-prompt"})
    text = httpx.get(routed[1], timeout=60).text
    assert "vllm_router_processed_requests_total" in text
    assert KEY not in text and "planted-prompt" not in text


def test_requests_are_spread_evenly_and_none_is_repeated(routed, replicas):
    async def load() -> list[httpx.Response]:
        async with httpx.AsyncClient(headers=RIGHT, timeout=60, trust_env=False, limits=httpx.Limits(max_connections=8)) as client:
            body = ASK | {"stream": True}
            return await asyncio.gather(*(client.post(routed[0] + "/v1/completions", json=body) for _ in range(64)))

    before = served(replicas)
    answers = asyncio.run(load())
    assert {answer.status_code for answer in answers} == {200}
    assert all(answer.text.endswith("data: [DONE]\n\n") for answer in answers)
    assert [after - start for after, start in zip(served(replicas), before, strict=True)] == [32, 32]
    assert requests_repeated(httpx.get(routed[1], timeout=60).text) == 0


@pytest.fixture
def least_busy(replicas, tmp_path):
    with router(replicas, tmp_path, "least_requests") as (url, metrics):
        yield url, metrics


@pytest.mark.parametrize("stream", [True, False])
def test_least_busy_replica_gets_the_next_request(least_busy, replicas, stream):
    def asked(tokens: int) -> httpx.Response:
        return ask(least_busy[0], "POST /v1/completions", RIGHT, **ASK | {"stream": stream, "max_tokens": tokens})

    before = served(replicas)
    with ThreadPoolExecutor() as pool:
        long = pool.submit(asked, 3000)
        wait_until(lambda: sum(map(in_flight, replicas)) == 1, 60, "a replica has the long request")
        assert [asked(4).status_code for _ in range(6)] == [200] * 6
        assert not long.done()
        assert long.result().status_code == 200
    assert sorted(after - start for after, start in zip(served(replicas), before, strict=True)) == [1, 6]


def test_sequential_requests_go_to_one_replica(least_busy, replicas):
    before = served(replicas)
    for prompt in ["planted-prompt"] * 3 + [f"planted-prompt {number}" for number in range(3)]:
        assert ask(least_busy[0], "POST /v1/completions", RIGHT, **ASK | {"prompt": prompt}).status_code == 200
    assert [after - start for after, start in zip(served(replicas), before, strict=True)] in ([6, 0], [0, 6])
    text = httpx.get(least_busy[1], timeout=60).text
    assert KEY not in text and "planted-prompt" not in text


@pytest.mark.parametrize("stream", [True, False])
def test_closed_connection_leaves_nothing_in_flight(least_busy, replicas, stream):
    def whom() -> int:
        """Return the replicas that got the requests. Requests closed here or in an earlier test may be counted too."""
        before = served(replicas)
        for _ in range(6):
            assert ask(least_busy[0], "POST /v1/completions", RIGHT, **ASK).status_code == 200
        gained = [after - start for after, start in zip(served(replicas), before, strict=True)]
        assert max(gained) >= 6 > 2 >= min(gained), gained
        return gained.index(max(gained))

    idle = whom()
    body = ASK | {"stream": stream, "max_tokens": 3000}
    with (
        httpx.Client(headers=RIGHT, trust_env=False, timeout=1.0) as client,
        suppress(httpx.ReadTimeout),
        client.stream("POST", least_busy[0] + "/v1/completions", json=body) as answer,
    ):
        next(answer.iter_bytes())
    time.sleep(2)
    assert whom() == idle


def test_dead_replica_fails_its_share_of_requests(standin_python, tmp_path):
    with server(standin_python, "m", tmp_path, behind_router=True) as alive, ExitStack() as mortal:
        dead = mortal.enter_context(server(standin_python, "m", tmp_path, behind_router=True))
        with router([alive, dead], tmp_path) as (url, _):
            mortal.close()
            found = Counter(ask(url, "POST /v1/completions", RIGHT, **ASK).status_code for _ in range(10))
    assert found == {200: 5, 500: 5}


@pytest.mark.parametrize("fault", ["open", "absent"])
def test_router_refuses_an_open_or_missing_replica(standin_python, tmp_path, fault):
    port, own, metrics = network.find_ports(HOST, 3, start=secrets.randbelow(len(network.PORTS)))
    url = f"http://{HOST}:{port}"
    argv = command_lines.router(router_python(), [url], HOST, own, metrics)
    with ExitStack() as stack:
        if fault == "open":
            served_open = [standin_python, "-m", command_lines.VLLM, "serve", "m", "--host", HOST, "--port", str(port)]
            stack.enter_context(started(served_open, {"STANDIN_START_S": "0.1"}, tmp_path / "open.log", url, 120))
        done = subprocess.run(argv, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert f"{url}/v1/models " in done.stderr and " 401" in done.stderr


@pytest.mark.real
@pytest.mark.timeout(300)
def test_every_route_of_real_vllm_requires_the_key(tmp_path):
    """Try the routes that vLLM logs, without and with the key."""
    python = real_python()
    model = tmp_path / "tiny"
    make("tiny-dense", model)
    options = ("--max-model-len", "128", "--enforce-eager", "--dtype", "bfloat16")
    begin = time.monotonic()
    with server(python, str(model), tmp_path, *options, seconds=240) as url:
        (log,) = tmp_path.glob("server-*.log")
        listed = re.findall(r"Route: (\S+), Methods: (.+)", log.read_text())
        routes = [f"{method} {path.replace('{response_id}', 'x')}" for path, methods in listed for method in methods.split(", ")]
        assert {"POST /invocations", "GET /metrics", "POST /tokenize", "GET /docs", "GET /health"} <= set(routes)
        routes += [
            "OPTIONS /v1/completions",
            "OPTIONS /health",
            "GET /nothing",
            "GET //health",
            "PUT /v1/models",
            "GET /metrics/",
        ]
        assert statuses(url, routes) == {route: Counter({401: len(WITHOUT)}) for route in routes}
        assert [ask(url, f"GET {path}", RIGHT).status_code for path in ("/health", "/v1/models", "/metrics")] == [200] * 3
        assert requests_served(ask(url, "GET /metrics", RIGHT).text) == 0
        for _ in range(3):
            assert ask(url, "POST /v1/completions", RIGHT, **ASK).json()["usage"]["completion_tokens"] == 4
        assert requests_served(ask(url, "GET /metrics", RIGHT).text) == 3
        assert KEY not in log.read_text()
    print(f"real vLLM: {len(routes)} routes, {time.monotonic() - begin:.0f} s", file=sys.stderr)
