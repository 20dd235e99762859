"""The client's processes: their shares, command lines and result files."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

from builders.loads import load
from builders.paths import FIXTURES
from servemark.deployment import client as client_room
from servemark.deployment.client import BenchmarkClient, shares
from servemark.deployment.client_server import GONE
from servemark.environments.build import IN_MODEL_ENV
from servemark.measurement.raw import RawError, RawResult
from servemark.processes.children import ToolResult
from servemark.records import Ready, ServerPlace, StagedPrompts

REAL = FIXTURES / "bench-0.32.0-cpu-detailed.json"


def places(*urls: str) -> tuple[ServerPlace, ...]:
    return tuple(ServerPlace(replica=f"r{n}", daemon=f"server-r{n}", node="n", url=url) for n, url in enumerate(urls))


READY = Ready(deployment="d", url="http://router", served_name="tiny", servers=places("http://first", "http://second"))


def test_one_process_has_the_whole_load_and_its_seed():
    point = load(seed=7, concurrency=5, request_rate=0.3)
    assert shares(point) == [point]


@pytest.mark.parametrize("count", [1, 2])
def test_every_process_runs_bench_client(tmp_path, count):
    point = load(seed=7, clients=count)
    client = BenchmarkClient(point, READY, tmp_path / ".raw.draft", "python", "/models/tiny")
    started = [tuple(argv[1 : argv.index("bench")]) for argv in client.commands]
    assert started == [(str(IN_MODEL_ENV / "bench_client.py"),)] * count


def test_client_may_run_the_tokenizers_code_if_the_server_may(tmp_path):
    for trusted in (False, True):
        client = BenchmarkClient(load(clients=2), READY, tmp_path / ".raw.draft", "python", "/models/tiny", trust_remote_code=trusted)
        assert [argv.count("--trust-remote-code") for argv in client.commands] == [int(trusted)] * 2


@pytest.mark.parametrize(("concurrency", "rate"), [(7, None), (None, 3.0), (7, 3.0)])
def test_shares_add_up_to_the_load(concurrency, rate):
    point = load(seed=7, concurrency=concurrency, request_rate=rate, requests=21, warmups=14, clients=3)
    three = shares(point)
    # In proportion to the slots; with a request rate, equal numbers.
    assert [share.requests for share in three] == ([7, 7, 7] if rate else [9, 6, 6])
    assert [share.warmups for share in three] == ([5, 5, 4] if rate else [6, 4, 4])
    assert [share.concurrency for share in three] == ([3, 2, 2] if concurrency else [None] * 3)
    assert sum(share.request_rate or 0 for share in three) == pytest.approx(rate or 0)
    assert {share.clients for share in three} == {1}


@pytest.mark.parametrize(("rate", "clients", "each"), [(3.0, 3, [1, 1, 1]), (None, 3, [0, 0, 0]), (3.0, 1, [0])])
def test_processes_with_rate_have_one_warmup_each(rate, clients, each):
    point = load(concurrency=6, request_rate=rate, requests=9, warmups=0, clients=clients)
    assert [share.warmups for share in shares(point)] == each


def test_shares_are_nonempty_and_take_equal_time():
    for clients in range(1, 9):
        for concurrency in range(clients, 40):
            for requests in range(max(clients, concurrency), 3 * concurrency):
                found = shares(load(concurrency=concurrency, requests=requests, clients=clients))
                assert sum(share.requests for share in found) == requests and min(share.requests for share in found) > 0
                waves = [share.requests / share.concurrency for share in found]
                assert max(waves) - min(waves) <= 1


def test_client_gets_warmup_length_and_shared_fraction(tmp_path, monkeypatch):
    told = []

    server = SimpleNamespace(name="client-server", argv=("socket",))

    def tool(node, request):
        order = json.loads(Path(request.argv[-1]).read_text())
        told.append(json.loads(order["variables"].get("SERVEMARK_WARMUP", "null")))
        return SimpleNamespace(run=lambda **_: ToolResult(0, 1.0))

    launcher = SimpleNamespace(alloc=SimpleNamespace(nodes=["n"]), tool=tool)
    monkeypatch.setattr(client_room.Launcher, "of", lambda attempt: launcher)
    monkeypatch.setattr(client_room.client_server, "running", lambda *_: server)
    here = SimpleNamespace(log=tmp_path / "log", watch=None)
    for tokens, prefix in ((32, 0), (32, 6), (None, 0)):
        point = load(seed=7, warmup_tokens=tokens, input_tokens=2, client_options={"random-prefix-len": prefix})
        client = BenchmarkClient(point, READY, tmp_path / ".raw.draft", "python", "/models/tiny")
        client.run(tmp_path, (), 1.0, here, lambda: None)
    assert told == [{"tokens": 32, "shared": 0.0}, {"tokens": 32, "shared": 0.75}, None]


@pytest.mark.parametrize(("codes", "found"), [([GONE, 0], 0), ([GONE, GONE, 0], GONE), ([1, 0], 1)])
def test_ended_client_server_is_replaced_once(tmp_path, monkeypatch, codes, found):
    given, waited = iter(codes), []
    launcher = SimpleNamespace(
        alloc=SimpleNamespace(nodes=["n"]), tool=lambda *_: SimpleNamespace(run=lambda **_: ToolResult(next(given), 1.0))
    )
    server = SimpleNamespace(name="client-server", argv=("socket",))
    monkeypatch.setattr(client_room.Launcher, "of", lambda attempt: launcher)
    monkeypatch.setattr(client_room.client_server, "running", lambda *_: server)
    monkeypatch.setattr(client_room.attempts, "await_end", lambda _, name: waited.append(name))
    client = BenchmarkClient(load(seed=7), READY, tmp_path / ".raw.draft", "python", "/models/tiny")
    ended = client.run(tmp_path, (), 1.0, SimpleNamespace(log=tmp_path / "log", watch=None), lambda: None)
    assert (ended.exit_code, waited) == (found, ["client-server"] if codes[0] == GONE else [])


def test_each_process_sends_other_prompts_and_always_the_same():
    point = load(seed=7, concurrency=64, requests=64, clients=64)
    seeds = [share.seed for share in shares(point)]
    assert seeds[0] == point.seed and len(set(seeds)) == 64 and all(0 <= seed < 2**31 for seed in seeds)
    assert seeds == [share.seed for share in shares(point)]
    fewer = point.model_copy(update={"clients": 2})
    assert [share.seed for share in shares(fewer)] == seeds[:2]


@pytest.mark.parametrize(("ask", "url"), [("endpoint", "http://router"), ("replica", "http://first")])
def test_each_process_gets_share_file_and_url(tmp_path, ask, url):
    point = load(seed=7, clients=3, ask=ask)
    client = BenchmarkClient(point, READY, tmp_path / ".raw.draft", "python", "/models/tiny")
    told = [dict(pairwise(argv)) for argv in client.commands]
    assert [each["--num-prompts"] for each in told] == ["2", "1", "1"]
    assert [each["--max-concurrency"] for each in told] == ["2", "1", "1"]
    assert [each["--result-filename"] for each in told] == [".raw.draft.0", ".raw.draft.1", ".raw.draft.2"]
    assert {each["--base-url"] for each in told} == {url} and {each["--result-dir"] for each in told} == {str(tmp_path)}


@pytest.fixture
def pair(tmp_path) -> BenchmarkClient:
    """Two processes with results, and another point's draft."""
    point = load(seed=1, requests=32, concurrency=8, clients=2)
    client = BenchmarkClient(point, READY, tmp_path / ".raw.draft", "python", "/models/tiny")
    for name in (".raw.draft.0", ".raw.draft.1"):
        (tmp_path / name).write_text(REAL.read_text())
    (tmp_path / ".other.draft.0").write_text("a neighbour's")
    start = json.loads(REAL.read_text())["start_times"][0]
    samples = [[start - 5, 1.0], [start, 2.0], [start + 0.1, 2.05], [start + 900, 3.0]]
    (tmp_path / ".raw.draft.samples").write_text(json.dumps({"cpu": [samples, samples], "clock": [start + 1, 1_800_000_001.0]}))
    return client


def test_results_of_processes_are_merged_with_cpu_samples(pair):
    raw = pair.collect()
    assert isinstance(raw, RawResult) and (raw.num_prompts, len(raw.clients)) == (32, 2)
    assert [[used for _, used in client.cpu] for client in raw.clients] == [[2.0, 2.05]] * 2
    assert pair.draft.exists()
    pair.draft.rename(pair.draft.with_name("raw.json"))
    pair.clear()
    assert sorted(path.name for path in pair.draft.parent.iterdir()) == [".other.draft.0", "raw.json"]


@pytest.mark.parametrize("text", [None, "", "[[1"])
def test_results_without_samples_are_results(pair, text):
    path = pair.draft.with_name(".raw.draft.samples")
    path.unlink() if text is None else path.write_text(text)
    assert [client.cpu for client in pair.collect().clients] == [(), ()]


@pytest.mark.parametrize(
    ("text", "reason"), [(None, "raw_missing"), ("", "raw_empty"), ('{"a": 1', "raw_truncated"), ('{"a": NaN}', "non_finite")]
)  # fmt: skip
def test_unusable_result_stays_as_evidence(pair, text, reason):
    path = pair.draft.with_name(".raw.draft.1")
    path.unlink() if text is None else path.write_text(text)
    answer = pair.collect()
    assert isinstance(answer, RawError) and answer.reason == reason
    assert (pair.draft.read_text() if pair.draft.exists() else None) == text


@pytest.mark.parametrize(("api", "route"), [("completions", "/v1/completions"), ("chat", "/v1/chat/completions")])
def test_requests_go_to_the_route_of_the_load(tmp_path, api, route):
    client = BenchmarkClient(load(api=api), READY, tmp_path / ".raw.draft", "python", "/models/tiny")
    (argv,) = client.commands
    assert dict(pairwise(argv))["--endpoint"] == route


def test_recorded_arrivals_keep_their_rhythm_at_the_request_rate(tmp_path):
    dataset = tmp_path / "rows.jsonl"
    moments = [0.0, 1.0, 1.0, 4.0, 9.0]
    dataset.write_text("".join(json.dumps({"prompt": f"p{n}", "timestamp": moment}) + "\n" for n, moment in enumerate(moments)))
    prompts = StagedPrompts(dataset="staged", name="d", rows=5, timed=True, output_tokens=3)
    point = load(requests=4, request_rate=6.0, concurrency=None).model_copy(update={"prompts": prompts})
    client = BenchmarkClient(point, READY, tmp_path / ".raw.draft", "python", "/models/tiny", dataset=dataset)
    client._write_prompts()
    sent = [json.loads(line) for line in (tmp_path / ".raw.draft.0.jsonl").read_text().splitlines()]
    assert [row["prompt"] for row in sent] == ["p0", "p1", "p2", "p3"], "in their order"
    assert [row["timestamp"] for row in sent] == pytest.approx([0, 0.125, 0.125, 0.5]), "three gaps of 1/6 s on average"
    assert dict(pairwise(client.commands[0]))["--backend"] == "openai"
