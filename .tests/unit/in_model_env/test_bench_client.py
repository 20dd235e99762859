"""The client's request function: streams in whole events, a common start of several processes, vLLM's command line."""

from __future__ import annotations

import asyncio
import itertools
import json
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from builders.client_processes import ClientServer, Point
from servemark.environments.build import IN_MODEL_ENV
from servemark.in_model_env import bench_client
from servemark.processes.identity import Identity

VARIABLE = "SERVEMARK_START_BARRIER"
TABLE = """
import asyncio, dataclasses, sys, time

@dataclasses.dataclass
class Request:
    prompt: str
    output_len: int
    request_id: str | None = None

@dataclasses.dataclass
class Output:
    start_time: float
    latency: float = 0.0
    success: bool = True

async def completions(request, session, pbar=None):
    output = Output(time.perf_counter())
    await asyncio.sleep(0.05 if request.request_id else float(sys.argv[3]))
    output.latency = time.perf_counter() - output.start_time
    return output

ASYNC_REQUEST_FUNCS, OPENAI_COMPATIBLE_BACKENDS = {"openai": completions}, ["openai"]
"""
# The needed part of vLLM's client: the warm-ups of --num-warmups, the time of the start, the measured requests.
MAIN = """
import asyncio, json, os, sys, time
from pathlib import Path
from vllm.benchmarks.lib.endpoint_request_func import ASYNC_REQUEST_FUNCS, OPENAI_COMPATIBLE_BACKENDS, Request

async def benchmark(path, warmups, rate):
    ticks = []
    async def tick():
        while True:
            ticks.append(time.perf_counter())
            await asyncio.sleep(0.02)
    ticking = asyncio.create_task(tick())
    send, made = ASYNC_REQUEST_FUNCS["servemark"], {"arrivals": []}
    async def warm():
        output = await send(request_func_input=Request("p", 9), session=None, pbar=None)
        made["warm"] = max(made.get("warm", 0), output.start_time + output.latency)
    if not rate:
        asyncio.get_running_loop().call_later(float(sys.argv[3]), path.with_suffix(".ready").touch)
    await asyncio.gather(*(warm() for _ in range(warmups)))
    begin, tasks = time.perf_counter(), []
    for number in range(4):
        await asyncio.sleep(0.05 if rate else 0)
        made["arrivals"].append(time.perf_counter())
        tasks.append(asyncio.create_task(send(request_func_input=Request("p", 9, str(number)), session=None)))
    outputs = await asyncio.gather(*tasks)
    ticking.cancel()
    made |= {"begin": begin, "starts": [output.start_time for output in outputs], "argv": sys.argv, "path": sys.path}
    made |= {"longest": max(after - before for before, after in zip(ticks, ticks[1:])), "backends": OPENAI_COMPATIBLE_BACKENDS}
    made |= {"told": [name for name in os.environ if name in ("SERVEMARK_START_BARRIER", "SERVEMARK_WARMUP")]}
    path.with_suffix(".draft").write_text(json.dumps(made))
    path.with_suffix(".draft").rename(path)

def main():
    if sys.argv[1:] == ["bench", "serve", "--help"]:
        sys.exit(0)
    path, what, seconds, *options = sys.argv[1:]
    with open(path + ".pid.draft", "w") as stream:
        stream.write(str(os.getpid()))
    os.rename(path + ".pid.draft", path + ".pid")
    if what in ("ends", "fails"):
        sys.exit(7 if what == "fails" else 0)
    if what == "late":
        time.sleep(4.0)
    if what == "becomes":
        os.execv(sys.executable, [sys.executable, "-c", "import time; time.sleep(1.5)"])
    given = dict(zip(options[::2], options[1::2]))
    asyncio.run(benchmark(Path(path), int(given["--num-warmups"]), given.get("--request-rate")))
"""
# Processes that start together differ by less than this, also on a busy machine. Warm-ups in these tests differ by more.
TOGETHER_S = 1.5
CLOSED_LOOP = ("--num-warmups", "2")
PACED = ("--num-warmups", "2", "--request-rate", "20")


class Clients(Point):
    """A load point with one bench_client.py for each (word, seconds of a warm-up), on a stand-in of vLLM."""

    def __init__(self, server: ClientServer, *whats: tuple[str, float], options: tuple[str, ...] = CLOSED_LOOP):
        self.files = [server.folder / f"client-{index}" for index in range(len(whats))]
        script = str(IN_MODEL_ENV / "bench_client.py")
        commands = [[script, str(file), what, str(seconds), *options] for file, (what, seconds) in zip(self.files, whats, strict=True)]
        super().__init__(server, *commands)

    def said(self) -> list[dict]:
        return [json.loads(file.read_text()) for file in self.files if file.exists()]

    def waiting(self, *numbers: int) -> bool:
        return all(self.files[number].with_suffix(".ready").exists() for number in numbers)

    def identities(self) -> list[Identity | None]:
        return [Identity.of(int(Path(f"{file}.pid").read_text())) for file in self.files]


@pytest.fixture
def clients(tmp_path, killed_at_the_end):
    for package in ("vllm", "vllm/benchmarks", "vllm/benchmarks/lib", "vllm/entrypoints", "vllm/entrypoints/cli"):
        (tmp_path / "site" / package).mkdir(parents=True)
        (tmp_path / "site" / package / "__init__.py").touch()
    (tmp_path / "site/vllm/benchmarks/lib/endpoint_request_func.py").write_text(TABLE)
    (tmp_path / "site/vllm/entrypoints/cli/main.py").write_text(MAIN)
    server = killed_at_the_end(ClientServer(tmp_path, PYTHONPATH=str(tmp_path / "site")))
    return lambda *whats, **given: killed_at_the_end(Clients(server, *whats, **given))


def test_processes_of_closed_loop_start_together(clients):
    three = clients(("runs", 0.0), ("runs", 5.0), ("runs", 2.5))
    assert three.process.wait(60) == 0, three.log.read_text()
    said = three.said()
    warm = [each["warm"] for each in said]
    assert max(warm) - min(warm) > 2 * TOGETHER_S, "they were ready at different times"
    starts = [start for each in said for start in each["starts"]]
    assert min(starts) >= max(warm) and max(starts) - min(starts) < TOGETHER_S
    assert all(each["longest"] < TOGETHER_S for each in said), "the event loop ran on while they waited"


def test_processes_without_warm_ups_start_together(clients):
    pair = clients(("runs", 0.0), ("late", 0.0), options=("--num-warmups", "0"))
    assert pair.process.wait(60) == 0, pair.log.read_text()
    starts = [start for each in pair.said() for start in each["starts"]]
    assert max(starts) - min(starts) < TOGETHER_S


def test_processes_at_a_rate_start_together_and_no_request_is_late(clients):
    three = clients(("runs", 0.0), ("runs", 5.0), ("runs", 2.5), options=PACED)
    assert three.process.wait(60) == 0, three.log.read_text()
    said = three.said()
    begins, warm = ([each[key] for each in said] for key in ("begin", "warm"))
    assert max(warm) - min(warm) > 2 * TOGETHER_S, "they were ready at different times"
    assert min(begins) >= max(warm) and max(begins) - min(begins) < TOGETHER_S
    waits = [start - due for each in said for start, due in zip(each["starts"], each["arrivals"], strict=True)]
    assert min(waits) >= 0 and max(waits) < TOGETHER_S


@pytest.mark.parametrize("what", ["ends", "becomes"])
def test_process_that_ends_before_it_is_ready_does_not_delay_the_others(clients, what):
    three = clients(("runs", 0.0), (what, 0.0), ("runs", 3.0))
    assert three.process.wait(60) == 0, three.log.read_text()
    first, third = (each["starts"] for each in three.said())
    assert max(first + third) - min(first + third) < TOGETHER_S, "the others begin together"


def test_process_that_fails_before_the_start_ends_the_others(clients):
    three = clients(("runs", 0.0), ("runs", 300.0), ("fails", 0.0))
    assert three.process.wait(60) == 7
    assert three.said() == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_signal_before_the_start_ends_all_processes(clients, wait_for, number):
    three = clients(("runs", 0.0), ("runs", 0.0), ("runs", 300.0))
    wait_for(lambda: three.waiting(0, 1) and Path(f"{three.files[2]}.pid").exists())
    everyone = three.identities()
    three.process.send_signal(number)
    assert three.process.wait(60) == (128 + number if number != signal.SIGKILL else -number)
    wait_for(lambda: not any(one.alive for one in everyone))
    assert three.said() == []


def test_vllm_gets_its_arguments_without_our_folder_and_variables(clients):
    pair = clients(("runs", 0.0), ("runs", 0.0))
    assert pair.process.wait(60) == 0, pair.log.read_text()
    for file, said in zip(pair.files, pair.said(), strict=True):
        assert said["argv"][1:] == [str(file), "runs", "0.0", *CLOSED_LOOP]
        assert str(IN_MODEL_ENV) not in said["path"] and said["told"] == []
        assert said["backends"] == ["openai", "servemark"]


EVENTS = [b'data: {"text": " \xc3\xa9 "}', b": ping", b'data: {"text": "b"}', b"data: [DONE]"]
STREAM = b"".join(event + b"\n\n" for event in EVENTS)


def read(*pieces: bytes) -> list[list[bytes]]:
    """Return the events of each piece that vLLM's request function gets, after it has stripped the piece."""

    async def arriving():
        for piece in pieces:
            yield piece

    async def collect():
        return [piece.strip().split(b"\n\n") async for piece in bench_client.whole_events(arriving())]

    return asyncio.run(collect())


def test_every_cut_of_a_stream_gives_the_same_events():
    expected = [EVENTS[0], EVENTS[2], EVENTS[3]]
    for first, second in itertools.combinations_with_replacement(range(len(STREAM) + 1), 2):
        found = read(STREAM[:first], STREAM[first:second], STREAM[second:])
        assert [event for piece in found for event in piece] == expected, (first, second)


def test_whole_event_arrives_at_once_and_rest_of_cut_stream_is_kept():
    assert read(b"data: 1\n", b"\ndata: 2\n\ndata: 3\n\nda", b"ta: 4") == [
        [b"data: 1", b"data: 2", b"data: 3"],
        [b"data: 4"],
    ]
    assert read(b"data: 1\n\n", b"data: 2\n\n") == [[b"data: 1"], [b"data: 2"]]


def test_latency_of_failed_request_is_its_time_until_the_failure():
    async def send(request, session, pbar):
        begin = time.perf_counter()
        await asyncio.sleep(0.1)
        return SimpleNamespace(success=request.request_id == "good", start_time=begin, latency=0.0)

    def latency(request_id: str) -> float:
        measure = bench_client.request_function(send, None, None, None)
        return asyncio.run(measure(SimpleNamespace(request_id=request_id), None)).latency

    assert latency("good") == 0.0, "as vLLM's own function measured it"
    assert latency("failed") >= 0.1
