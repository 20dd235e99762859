"""The chat route: messages of a row take the place of vLLM's own, and the event without a token is left out."""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace

import pytest

from servemark.in_model_env import bench_client

TALK = [{"role": role, "content": " ".join(f"{role}{number}" for number in range(50))} for role in ("system", "user")]


@dataclass
class Request:
    """The fields of vLLM's RequestFuncInput that matter."""

    prompt: object
    output_len: int
    request_id: str | None = None
    extra_body: dict | None = None


def sent(conversations) -> list[Request]:
    """Return three warm-ups and two measured requests that reach vLLM's own function."""
    found = []

    async def send(request, session, pbar):
        found.append(request)
        return SimpleNamespace(success=True, ttft=0.5, itl=[0.1, 0.2], latency=9.0)

    async def benchmark():
        function = bench_client.request_function(send, None, {"tokens": 7, "shared": 0.0}, None, conversations=conversations)
        for _ in range(3):
            await function(Request("text", 9, extra_body={"top_k": 1}), None)
        for number in range(2):
            await function(Request("text", 9, f"id{number}", {"top_k": 1}), None)

    asyncio.run(benchmark())
    return found


def test_each_request_has_the_messages_of_its_row():
    first, second = sent({"id0": TALK, "id1": None})[3:]
    assert first.extra_body == {"top_k": 1, "messages": TALK}
    assert second == Request("text", 9, "id1", {"top_k": 1}), "vLLM's client makes a message of the prompt"


def test_warm_ups_have_other_messages_of_the_same_roles():
    warmups = [request.extra_body["messages"] for request in sent({"id0": TALK, "id1": None})[:3]]
    assert all([message["role"] for message in one] == ["system", "user"] for one in warmups)
    contents = {message["content"] for one in [*warmups, TALK] for message in one}
    assert len(contents) == 8, "all differ"


def test_requests_of_the_completions_route_are_unchanged():
    assert {request.extra_body is not None and "messages" in request.extra_body for request in sent(None)} == {False}


@dataclass
class Sampled:
    """The fields of vLLM's SampleRequest that matter."""

    prompt: str
    request_id: str
    timestamp: float | None = None


@pytest.fixture
def rows(tmp_path, monkeypatch):
    """Return the requests that vLLM's data set makes of a file, and the conversations by request id."""

    class CustomDataset:
        def __init__(self, dataset_path, disable_shuffle=True):
            self.dataset_path, self.data = dataset_path, []
            self.load_data()

        def sample(self, tokenizer, num_requests, request_id_prefix="", output_len=None, skip_chat_template=False):
            return [Sampled(row["prompt"], f"{request_id_prefix}id{number}") for number, row in enumerate(self.data[:num_requests])]

    module = ModuleType("vllm.benchmarks.datasets")
    CustomDataset.__module__ = module.__name__
    module.CustomDataset = CustomDataset
    for name in ("vllm", "vllm.benchmarks"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    sys.modules["vllm.benchmarks"].datasets = module
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ({"messages": TALK, "timestamp": 0.5}, {"prompt": "p", "timestamp": 2.0})))
    conversations = {}
    found = bench_client.read_rows_without_pandas(conversations)
    assert module.CustomDataset is found
    bench_client.take_times_from_rows(found)
    timed = module.TimedTrace(str(path), seed=1).sample(num_requests=2, tokenizer=None, request_id_prefix="t")
    assert [(request.request_id, request.timestamp) for request in timed] == [("tid0", 0.5), ("tid1", 2.0)]
    conversations.clear()
    return module.CustomDataset(str(path)).sample(None, 2), conversations


def test_conversations_of_a_file_are_found_by_request(rows):
    requests, conversations = rows
    assert conversations == {"id0": TALK, "id1": None}
    assert [request.prompt for request in requests] == ["\n".join(message["content"] for message in TALK), "p"]


def test_requests_of_groups_get_ids(monkeypatch):
    @dataclass
    class Sample:
        prompt: str
        request_id: str | None = None

    class PrefixRepetitionRandomDataset:
        def sample(self, count, request_id_prefix=""):
            return [Sample(f"p{number}") for number in range(count)]

    module = ModuleType("vllm.benchmarks.datasets")
    PrefixRepetitionRandomDataset.__module__ = module.__name__
    module.PrefixRepetitionRandomDataset = PrefixRepetitionRandomDataset
    for name in ("vllm", "vllm.benchmarks"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    sys.modules["vllm.benchmarks"].datasets = module
    bench_client.number_prefix_requests()
    assert module.PrefixRepetitionRandomDataset().sample(2, request_id_prefix="b-") == [Sample("p0", "b-0"), Sample("p1", "b-1")]


@pytest.mark.parametrize(("conversations", "latency"), [({}, 0.8), (None, 9.0)])
def test_chat_response_ends_with_its_last_token(conversations, latency):
    async def send(request, session, pbar):
        return SimpleNamespace(success=True, ttft=0.5, itl=[0.1, 0.2], latency=9.0)

    function = bench_client.request_function(send, None, None, None, conversations=conversations)
    assert asyncio.run(function(Request("text", 9, "id"), None)).latency == pytest.approx(latency)


def event(delta: dict) -> bytes:
    return b"data: " + json.dumps({"choices": [{"index": 0, "delta": delta}]}).encode()


ROLE, TOKENS = event({"role": "assistant", "content": ""}), [event({"content": text}) for text in ("", " a", " b")]


def read(stream: bytes, *cuts: int) -> list[bytes]:
    async def arriving():
        for begin, end in itertools.pairwise((0, *cuts, len(stream))):
            yield stream[begin:end]

    async def collect():
        whole = bench_client.whole_events(arriving())
        return [event for piece in [some async for some in bench_client.without_role(whole)] for event in piece.strip().split(b"\n\n")]

    return asyncio.run(collect())


def test_event_with_the_role_alone_is_left_out_wherever_the_stream_is_cut():
    stream = b"".join(one + b"\n\n" for one in (ROLE, *TOKENS))
    for cuts in itertools.combinations_with_replacement(range(0, len(stream) + 1, 3), 2):
        assert read(stream, *cuts) == TOKENS, cuts


@pytest.mark.parametrize(
    "first", [event({"role": "assistant", "content": "a"}), event({"role": "assistant", "reasoning": "a"}), b"data: x"]
)
def test_event_with_a_token_stays(first):
    assert read(first + b"\n\n" + TOKENS[1] + b"\n\n") == [first, TOKENS[1]]
