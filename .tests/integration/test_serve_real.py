"""An endpoint of real vLLM (CPU), used with the Python code of how-to-use.txt and the openai package that vLLM installs."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path

import httpx
import pytest

from integration.harness import ROOT, RUN, wait_until
from integration.test_serve import STOPPED_S, assert_nothing_left, living, serve, servemark
from servemark.deployment import how_to_use

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]
CACHE = ROOT / "results" / "cache"
VLLM_CLOSES_S = 5
"""After so long without a request vLLM by itself closes a connection (VLLM_HTTP_TIMEOUT_KEEP_ALIVE)."""


@pytest.fixture
def real(fresh):
    """Return a configuration with one deployment of real vLLM, in the environment of the other real tests."""
    if sys.version_info[:2] != (3, 11) or platform.machine() != "x86_64":
        reason = "the cpu lock is for CPython 3.11 on x86_64"
        pytest.fail(reason) if os.environ.get("SERVEMARK_REQUIRE_REAL") == "1" else pytest.skip(reason)
    deployment = {
        "model": "tiny",
        "environment": "cpu",
        "options": {"max-model-len": 512, "enforce-eager": True, "dtype": "bfloat16"},
        "variables": {"VLLM_CPU_KVCACHE_SPACE": "1"},
    }
    fresh.config |= {
        "environments": {"cpu": {"lock": "cpu"}},
        "deployments": {"a": deployment},
        "cache": str(CACHE),
        "timeouts": {"start": 400.0, "stall": 300.0, "stop": 10.0},
    }
    with tempfile.TemporaryDirectory(prefix="sm", dir="/tmp") as folder:
        fresh.runtime = Path(folder)
        yield fresh
        for process in fresh.processes():
            process.kill()


def served(server: str, key: str) -> dict[str, int]:
    """Return the requests that each engine of a server has finished."""
    text = httpx.get(f"{server}/metrics", headers={"Authorization": f"Bearer {key}"}, trust_env=False, timeout=10).text
    counts: Counter[str] = Counter()
    for engine, number in re.findall(r'^vllm:request_success_total\{[^}]*engine="(\d+)"[^}]*\} (\S+)', text, re.MULTILINE):
        counts[engine] += round(float(number))
    return dict(counts)


def status(connection: HTTPConnection) -> int:
    """Return the status of a request on a kept connection, which reconnects only after the server has closed it."""
    connection.request("GET", "/version")
    response = connection.getresponse()
    response.read()
    return response.status


def ask(url: str, key: str, rank: int | None = None, count: int = 4) -> None:
    headers = {"Authorization": f"Bearer {key}"} | ({} if rank is None else {"X-data-parallel-rank": str(rank)})
    body = {"model": "tiny", "prompt": "Hello", "max_tokens": count, "ignore_eos": True}
    httpx.post(f"{url}/v1/completions", json=body, headers=headers, timeout=60, trust_env=False).raise_for_status()


def gained(server: str, key: str, act: Callable[[], object]) -> dict[str, int]:
    """Return the requests that each engine finishes during an action."""
    before = served(server, key)
    act()
    after = served(server, key)
    return {engine: after[engine] - before.get(engine, 0) for engine in sorted(after)}


def test_router_gives_each_data_parallel_engine_as_many_requests(real):
    """vLLM's own balancing is uneven; the router chooses the engine, and real vLLM follows."""
    deployment = real.config["deployments"]["a"]
    deployment["topology"] = {"data_parallel": 2, "balancing": "router"}
    running = serve(real, seconds=800)
    ready = json.loads((real.results / "serving" / "a" / "ready.json").read_text())
    key = (real.path / ready["key_file"]).read_text().strip()
    (server,) = ready["servers"]
    assert ready["router"] and ready["url"] == ready["router"]["url"] != server["url"]
    assert httpx.get(f"{ready['url']}/v1/models", trust_env=False, timeout=10).status_code == 401
    assert gained(server["url"], key, lambda: [ask(server["url"], key, rank=1) for _ in range(4)]) == {"0": 0, "1": 4}
    with ThreadPoolExecutor() as pool:

        def beside_a_long_one() -> None:
            # vLLM itself would send all of them to the idle engine.
            long = pool.submit(ask, server["url"], key, rank=0, count=400)
            for _ in range(6):
                ask(ready["url"], key)
            long.result()

        assert gained(server["url"], key, beside_a_long_one) == {"0": 1 + 3, "1": 3}
    assert servemark(real, "stop", "a", "--run", RUN).returncode == 0
    assert running.wait(STOPPED_S + 15).rc == 0
    assert_nothing_left(real)


def test_printed_python_works_and_its_requests_are_counted(real, tmp_path):
    running = serve(real, seconds=700)
    url = living(real)[0]["url"]
    idle = HTTPConnection(*url.removeprefix("http://").split(":"), timeout=10)
    assert status(idle) == 401
    kept, since = idle.sock, time.monotonic()
    page = (real.results / "serving" / "a" / how_to_use.NAME).read_text()
    code = page.partition(f"{how_to_use.PYTHON_BEGIN}\n")[2].partition(how_to_use.PYTHON_END)[0]
    program = tmp_path / "ask.py"
    program.write_text(code)
    python = json.loads((real.results / "environments" / "cpu" / "environment.json").read_text())["python"]
    asked = subprocess.run([python, str(program)], capture_output=True, text=True, timeout=120)
    assert asked.returncode == 0, asked.stderr
    assert asked.stdout.strip(), "the response was printed"

    curl = re.search(r"^curl .*?\n\n", page, re.MULTILINE | re.DOTALL)[0]
    printed = subprocess.run(["bash", "-c", curl], capture_output=True, text=True, timeout=60)
    given = json.loads(printed.stdout)
    assert given["object"] == "chat.completion", printed.stdout + printed.stderr
    assert 1 <= given["usage"]["completion_tokens"] <= how_to_use.CHAT_TOKENS

    wait_until(lambda: living(real)[0]["finished"] == 2, 20, "both requests are counted")
    for route in ("/v1/models", "/metrics", "/health", "/version"):
        assert httpx.get(f"{url}{route}", trust_env=False, timeout=10).status_code == 401, route

    time.sleep(max(0.0, VLLM_CLOSES_S + 1 - (time.monotonic() - since)))
    assert status(idle) == 401
    assert idle.sock is kept, "the server closed a connection that its client still kept open"
    idle.close()

    assert servemark(real, "stop", "a", "--run", RUN).returncode == 0
    assert running.wait(STOPPED_S + 15).rc == 0
    held = json.loads((real.results / "serving" / "a" / "held.json").read_text())
    assert (held["why"], held["leftovers"], held["finished"]) == ("stop_requested", [], 2)
    assert_nothing_left(real)
