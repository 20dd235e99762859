"""Our request function in vLLM's client (CPU): its requests, its start, and results equal to those of vLLM's own function."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from builders.client_processes import ClientServer, Point
from integration.harness import ROOT, Checkout
from servemark.deployment.client import shares
from servemark.environments.build import IN_MODEL_ENV
from servemark.launch import command_lines
from servemark.measurement.merge import merge
from servemark.measurement.raw import read_data, read_raw
from servemark.measurement.statistics import recount, span_of
from servemark.measurement.thresholds import Verdict
from servemark.measurement.verdict import ServerFacts, judge
from servemark.records import LoadPoint, RandomPrompts

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]
FIRST_S, TOKEN_S = 0.2, 0.02
PROMPTS = RandomPrompts(dataset="random", input_tokens=64, output_tokens=20)
POINT = LoadPoint(name="p", workload="w", prompts=PROMPTS, concurrency=4, repetition=1, seed=3, requests=8, warmups=6)
FINE = ServerFacts(client_exit_code=0)
VARIABLES = {**command_lines.NO_PROXY, "HF_HUB_OFFLINE": "1", "OPENAI_API_KEY": "x"}
WARMUP = '{"tokens": 5, "shared": 0.0}'
LATE_S = 3.0


class Server(ThreadingHTTPServer):
    """A server that streams the requested number of tokens at an even pace and keeps the time and body of each request.

    Args:
        late: number of the warm-up, in the order of their arrival, whose first token comes LATE_S later.
    """

    def __init__(self, late: int | None = None):
        self.requests: list[tuple[float, dict]] = []
        self.late = late
        self.lock = threading.Lock()
        super().__init__(("127.0.0.1", 0), Streaming)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def sent(self, tokens: int) -> list[dict]:
        """Return the bodies with this number of requested tokens, in the order of their prompts."""
        return sorted((body for _, body in self.requests if body["max_tokens"] == tokens), key=lambda one: one["prompt"])


class Streaming(BaseHTTPRequestHandler):
    """Serves completions; any other route returns an error, which vLLM's client accepts."""

    def do_POST(self) -> None:
        came, body = time.perf_counter(), json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path != "/v1/completions":
            self.send_error(404)
            return
        with self.server.lock:
            self.server.requests.append((came, body))
            late = body["max_tokens"] == 5 and len(self.server.sent(5)) == self.server.late
        came += LATE_S if late else 0.0
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for number in range(body["max_tokens"]):
            due = came + FIRST_S + number * TOKEN_S
            time.sleep(max(0.0, due - time.perf_counter()))
            self.event({"choices": [{"text": f" {number}"}]})
        self.event({"choices": [], "usage": {"completion_tokens": body["max_tokens"], "prompt_tokens": 64}})
        self.wfile.write(b"data: [DONE]\n\n")

    def event(self, data: dict) -> None:
        self.wfile.write(f"data: {json.dumps(data)}\n\n".encode())

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        yield running
        running.shutdown()


@pytest.fixture(scope="module")
def staged(bare_checkout, tmp_path_factory) -> tuple[str, str]:
    """Return the interpreter of the cpu lock's environment, and the folder of the small model."""
    if sys.version_info[:2] != (3, 11) or platform.machine() != "x86_64":
        reason = "the cpu lock is for CPython 3.11 on x86_64"
        pytest.fail(reason) if os.environ.get("SERVEMARK_REQUIRE_REAL") == "1" else pytest.skip(reason)
    path = tmp_path_factory.mktemp("client") / "checkout"
    shutil.copytree(bare_checkout.path, path)
    config = bare_checkout.config | {
        "environments": {"standin": {"lock": "cpu"}},
        "cache": str(ROOT / "results" / "cache"),
    }
    checkout, run = Checkout(path, bare_checkout.runtime, config), f"results/{config['run']}"
    done = checkout.run("--", f"{run}/environments/standin/environment.json", f"{run}/models/tiny/manifest.json", seconds=600)
    assert done.rc == 0, done.text
    records = ("environments/standin/environment.json", "python"), ("models/tiny/manifest.json", "path")
    return tuple(checkout.record(name)[key] for name, key in records)


@pytest.fixture(scope="module")
def clients(staged, tmp_path_factory) -> Iterator[ClientServer]:
    """The process whose forks are vLLM's clients."""
    running = ClientServer(tmp_path_factory.mktemp("c"), python=staged[0], **VARIABLES)
    yield running
    running.process.kill()
    running.process.wait()


def test_results_on_an_undisturbed_stream_equal_vllms_own(staged, clients, server, tmp_path):
    python, model = staged
    with Server() as other:
        ours = command_lines.bench(python, server.url, "tiny", model, POINT, str(tmp_path), "ours.json")
        plain = command_lines.bench(python, other.url, "tiny", model, POINT, str(tmp_path), "plain.json")
        plain[1:2] = ["-m", "vllm.entrypoints.cli.main"]
        plain[plain.index("--backend") + 1] = "openai"
        mine = Point(clients, ours[1:], SERVEMARK_WARMUP=WARMUP).process
        theirs = subprocess.Popen(plain, env=os.environ | VARIABLES, stdout=subprocess.DEVNULL)
        assert [process.wait(120) for process in (mine, theirs)] == [0, 0]
        other.shutdown()
    (_, mine), (_, theirs) = parts = [read_data(tmp_path / name) for name in ("ours.json", "plain.json")]
    assert list(parts[0][0]) == list(parts[1][0]), "the same keys"
    for key in ("input_lens", "output_lens", "generated_texts", "errors", "completed", "failed", "total_output_tokens"):
        assert parts[0][0][key] == parts[1][0][key], key
    assert [len(request.itls) for request in mine.requests] == [19] * 8 == [len(r.itls) for r in theirs.requests]
    figures = [recount(raw.duration_s, raw.good) for raw in (mine, theirs)]
    for name in ("ttft_ms", "itl_ms", "tpot_ms", "e2el_ms"):
        first, second = (getattr(one, name).mean for one in figures)
        assert first == pytest.approx(second, rel=0.15), name
    assert figures[0].output_throughput == pytest.approx(figures[1].output_throughput, rel=0.15)
    merged = merge(parts[:1], [()])
    assert merged["duration"] == pytest.approx(mine.duration_s, abs=0.1), "a single process does not wait"

    # vLLM's warm-ups request as many tokens: they are the first measured prompt, six times.
    assert [body["prompt"] for body in server.sent(20)] == sorted({body["prompt"] for body in other.sent(20)})
    assert all(body in other.sent(20) for body in server.sent(20)), "the same requests are measured"
    warmups = server.sent(5)
    assert (len(warmups), len(server.requests)) == (6, 14)
    beginnings = {body["prompt"][:16] for body in (*warmups, *server.sent(20))}
    assert len(beginnings) == 14, "warm-ups share no prefix with each other or with measured prompts"
    longest = max(len(body["prompt"]) for body in server.sent(20))
    assert all(len(body["prompt"]) > 0.7 * longest for body in warmups)


def test_wait_for_the_second_process_is_not_measured(staged, clients, tmp_path):
    python, model = staged
    point = POINT.model_copy(update={"clients": 2})
    with Server(late=6) as server:
        argvs = [
            command_lines.bench(python, server.url, "tiny", model, share, str(tmp_path), f"{number}.json")
            for number, share in enumerate(shares(point))
        ]
        assert Point(clients, *(argv[1:] for argv in argvs), SERVEMARK_WARMUP=WARMUP).process.wait(120) == 0
        server.shutdown()
    parts = [read_data(tmp_path / f"{number}.json") for number in range(2)]
    starts = [min(request.start for request in raw.requests) for _, raw in parts]
    assert abs(starts[0] - starts[1]) < 0.3
    measured = [came for came, body in server.requests if body["max_tokens"] == 20]
    warmups = [came for came, body in server.requests if body["max_tokens"] == 5]
    assert (len(measured), len(warmups)) == (8, 6) and max(warmups) < min(measured)
    merged = merge(parts, [(), ()])
    everything = [request for _, raw in parts for request in raw.requests]
    assert merged["duration"] == pytest.approx(span_of(everything), abs=1e-6)
    assert max(raw.duration_s for _, raw in parts) > merged["duration"] + LATE_S / 2, "vLLM's own includes the wait"


def test_stream_is_read_wherever_the_network_splits_it(staged):
    argv = [staged[0], str(Path(__file__).with_name("split_chunks.py")), str(IN_MODEL_ENV)]
    done = subprocess.run(argv, check=True, capture_output=True, text=True, timeout=120)
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["ours"] == {"success": True, "text": "one  two three", "tokens": 3}
    assert not found["plain"]["success"], "vLLM's function reads it too: bench_client.py need not reassemble the stream"


def test_ramp_up_delays_the_slots_and_no_request_starts_after_duration(staged, clients, server, tmp_path):
    python, model = staged
    point = POINT.model_copy(update={"requests": 200, "ramp_up_s": 1.2, "sending_s": 3.0})
    argv = command_lines.bench(python, server.url, "tiny", model, point, str(tmp_path), "timed.json")
    load = json.dumps({"ramp_up_s": point.ramp_up_s, "sending_s": point.sending_s})
    assert Point(clients, argv[1:], SERVEMARK_LOAD=load, SERVEMARK_WARMUP=WARMUP).process.wait(120) == 0
    part = read_data(tmp_path / "timed.json")
    (tmp_path / "merged.json").write_text(json.dumps(merge([part], [()])))
    raw = read_raw(tmp_path / "merged.json")
    starts = sorted(request.start for request in raw.requests)
    first = [request.start - starts[0] for request in raw.requests[:4]]  # of each slot
    assert first == pytest.approx([0.0, 0.3, 0.6, 0.9], abs=0.1)
    assert 4 < len(raw.requests) < 200 and len(raw.requests) == len(server.sent(20)), "only requests that reached the server are listed"
    assert starts[-1] - starts[0] < 3.0 <= span_of(raw.requests)
    assert not {"requests_unaccounted", "client_disagrees"} & {reason.code for reason in judge(raw, point, Verdict(), FINE).reasons}
