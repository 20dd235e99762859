"""The client reads what arrives; several processes begin to measure together, and none waits for one that will never be ready."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from servemark.environments.build import IN_MODEL_ENV
from servemark.processes.identity import Identity

VARIABLE = "SERVEMARK_START_BARRIER"
# As much of vllm/benchmarks/serve.py as matters: what is awaited before and after the look at the clock, `perf_counter`. (On Linux
# `monotonic` is the same clock.)
SERVE = """
import asyncio, json, os, sys, time
from pathlib import Path

async def fetch_spec_decode_metrics(url, session):
    return f"spec {url} {session}"

async def fetch_diffusion_metrics(url, session):
    return f"diffusion {url} {session}"

async def benchmark(path, seconds):
    ticks = []
    async def tick():
        while True:
            ticks.append(time.monotonic())
            await asyncio.sleep(0.02)
    ticking = asyncio.create_task(tick())
    await asyncio.sleep(seconds)
    path.with_suffix(".ready").touch()
    ready = time.monotonic()
    answers = [BEFORE]
    begin = time.perf_counter()
    answers += [await fetch_spec_decode_metrics("u", session=2), await fetch_diffusion_metrics("u", session=2)]
    ticking.cancel()
    longest = max(after - before for before, after in zip(ticks, ticks[1:] + [begin]))
    said = {"ready": ready, "begin": begin, "answers": answers, "longest": longest, "argv": sys.argv, "path": sys.path[0]}
    said |= {"told": "SERVEMARK_START_BARRIER" in os.environ, "name": sys.modules["__main__"].__spec__.name}
    path.with_suffix(".draft").write_text(json.dumps(said))
    path.with_suffix(".draft").rename(path)
"""
MAIN = """
import os, sys

def main():
    path, what, seconds = sys.argv[1:]
    with open(path + ".pid.draft", "w") as stream:
        stream.write(str(os.getpid()))
    os.rename(path + ".pid.draft", path + ".pid")
    if what in ("ends", "fails"):
        sys.exit(7 if what == "fails" else 0)
    if what == "becomes":
        os.execv(sys.executable, [sys.executable, "-c", "import time; time.sleep(1.5)"])
    import asyncio, vllm.benchmarks.serve
    from pathlib import Path
    asyncio.run(vllm.benchmarks.serve.benchmark(Path(path), float(seconds)))

if __name__ == "__main__":
    main()
"""
SPEC = "await fetch_spec_decode_metrics('u', session=1)"
DIFFUSION = "await fetch_diffusion_metrics('u', session=1)"
# What is awaited before the clock is looked at.
KNOWN = {"0.25 and 0.32": f"{SPEC}, {DIFFUSION}", "older": SPEC, "other order": f"{DIFFUSION}, {SPEC}"}


class Clients:
    """run_clients.py with one bench_client.py for each (word, seconds of warm-up), on a vLLM of our own."""

    def __init__(self, folder: Path, *whats: tuple[str, float]):
        self.folder = folder
        self.files = [folder / f"client-{index}" for index in range(len(whats))]
        argvs = [
            [sys.executable, str(IN_MODEL_ENV / "bench_client.py"), str(file), what, str(seconds)]
            for file, (what, seconds) in zip(self.files, whats, strict=True)
        ]
        order = folder / "order.json"
        order.write_text(json.dumps({"processes": argvs, "cpu": str(folder / "cpu.json")}))
        self.log = folder / "log"
        with self.log.open("w") as stream:
            self.process = subprocess.Popen(
                [sys.executable, str(IN_MODEL_ENV / "run_clients.py"), str(order)],
                env=os.environ | {"PYTHONPATH": str(folder / "site")}, cwd=folder, stderr=stream,
            )  # fmt: skip

    def said(self) -> list[dict]:
        return [json.loads(file.read_text()) for file in self.files if file.exists()]

    def waiting(self, *numbers: int) -> bool:
        return all(self.files[number].with_suffix(".ready").exists() for number in numbers)

    def identities(self) -> list[Identity | None]:
        return [Identity.of(int(Path(f"{file}.pid").read_text())) for file in self.files]


def make_vllm(site: Path, before: str | None) -> None:
    for package in ("vllm", "vllm/benchmarks", "vllm/entrypoints", "vllm/entrypoints/cli"):
        (site / package).mkdir(parents=True, exist_ok=True)
        (site / package / "__init__.py").touch()
    (site / "vllm/entrypoints/cli/main.py").write_text(MAIN)
    if before is not None:
        (site / "vllm/benchmarks/serve.py").write_text(SERVE.replace("BEFORE", before))


@pytest.fixture
def clients(tmp_path, killed_at_the_end):
    def start(*whats: tuple[str, float], before: str | None = KNOWN["0.25 and 0.32"]) -> Clients:
        make_vllm(tmp_path / "site", before)
        return killed_at_the_end(Clients(tmp_path, *whats))

    return start


@pytest.mark.parametrize("version", KNOWN)
def test_processes_that_are_ready_at_different_times_begin_together(clients, version):
    three = clients(("runs", 0.0), ("runs", 1.2), ("runs", 0.6), before=KNOWN[version])
    assert three.process.wait(30) == 0, three.log.read_text()
    said = three.said()
    begins, ready = ([each[key] for each in said] for key in ("begin", "ready"))
    assert max(ready) - min(ready) > 0.8, "they were ready at different times"
    assert min(begins) >= max(ready) and max(begins) - min(begins) < 0.3
    assert "of 3 client processes all are ready after" in three.log.read_text()
    # The event loop went on, and what is awaited answers as without us, before and after the load.
    assert said[0]["longest"] < 0.4
    expected = [f"{name} u 1" for name in ("spec", "diffusion") if f"fetch_{name}" in KNOWN[version]]
    assert all(sorted(each["answers"][:-2]) == sorted(expected) for each in said)
    assert all(each["answers"][-2:] == ["spec u 2", "diffusion u 2"] for each in said)


@pytest.mark.parametrize("before", ["None", "time.perf_counter(), " + SPEC])
def test_a_vllm_without_a_place_to_wait_is_not_held_and_this_is_told(clients, before):
    """What is awaited only after the clock was looked at is no such place."""
    pair = clients(("runs", 0.0), ("runs", 1.5), before=before)
    assert pair.process.wait(30) == 0, pair.log.read_text()
    first, second = pair.said()
    assert first["begin"] < second["ready"]
    log = pair.log.read_text()
    assert log.count("this client process begins as soon as it is ready") == 2
    assert "cannot be waited for" in log and "clients_out_of_step" in log and "all are ready" not in log


def test_a_vllm_without_the_module_says_so_at_once_and_runs(clients, tmp_path):
    pair = clients(("ends", 0.0), ("ends", 0.0), before=None)
    assert pair.process.wait(30) == 0
    assert "this vLLM's vllm.benchmarks.serve has no function that we know" in pair.log.read_text()


@pytest.mark.parametrize("what", ["ends", "becomes"])
def test_one_that_will_never_be_ready_holds_nobody_up(clients, what):
    three = clients(("runs", 0.0), (what, 0.0), ("runs", 1.5))
    assert three.process.wait(30) == 0, three.log.read_text()
    first, third = three.said()
    assert first["begin"] < third["ready"], "released before the last one was ready"
    assert "of 3 client processes number 2 cannot be waited for" in three.log.read_text()


def test_one_that_fails_before_ends_the_others_and_nobody_begins(clients):
    three = clients(("runs", 0.0), ("runs", 300.0), ("fails", 0.0))
    assert three.process.wait(20) == 7
    assert three.said() == [] and "cannot be waited for" not in three.log.read_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_ended_while_they_wait_they_end_and_nobody_begins(clients, wait_for, number):
    three = clients(("runs", 0.0), ("runs", 0.0), ("runs", 300.0))
    wait_for(lambda: three.waiting(0, 1) and Path(f"{three.files[2]}.pid").exists())
    everyone = three.identities()
    begin = time.monotonic()
    three.process.send_signal(number)
    assert three.process.wait(10) == (128 + number if number != signal.SIGKILL else -number)
    assert time.monotonic() - begin < 3, "whoever ends it has that much patience"
    wait_for(lambda: not any(one.alive for one in everyone), 5)
    assert three.said() == []


def test_it_runs_vllm_as_python_m_does_with_the_arguments_that_it_was_given(clients):
    """Neither the folder of our scripts on the path, nor our variable in the environment."""
    pair = clients(("runs", 0.0), ("runs", 0.0))
    assert pair.process.wait(30) == 0, pair.log.read_text()
    for file, said in zip(pair.files, pair.said(), strict=True):
        assert said["argv"][1:] == [str(file), "runs", "0.0"] and said["argv"][0].endswith(
            "vllm/entrypoints/cli/main.py"
        )
        assert (said["path"], said["told"], said["name"]) == (str(pair.folder), False, "vllm.entrypoints.cli.main")


def test_no_end_of_the_barrier_is_left_open_elsewhere(tmp_path):
    """Each process has its own end alone: who holds another's would keep run_clients.py from seeing that it closed."""
    # In one write: the three share a pipe.
    listed = f"' '.join([os.environ['{VARIABLE}'], *os.listdir('/proc/self/fd')])"
    tell = f"import os; os.write(1, ({listed} + chr(10)).encode())"
    order = tmp_path / "order.json"
    order.write_text(json.dumps({"processes": [[sys.executable, "-c", tell]] * 3, "cpu": str(tmp_path / "cpu")}))
    argv = [sys.executable, str(IN_MODEL_ENV / "run_clients.py"), str(order)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert len(lines) == 3
    for mine, *opened in lines:
        # The last one is the listing's own.
        assert mine in opened and len({int(number) for number in opened} - {0, 1, 2, int(mine)}) == 1


def test_one_process_alone_gets_no_barrier(tmp_path):
    order = tmp_path / "order.json"
    tell = f"import os, sys; sys.exit(3 if '{VARIABLE}' in os.environ else 0)"
    order.write_text(json.dumps({"processes": [[sys.executable, "-c", tell]], "cpu": str(tmp_path / "cpu")}))
    done = subprocess.run([sys.executable, str(IN_MODEL_ENV / "run_clients.py"), str(order)], timeout=30)
    assert done.returncode == 0


READS = """
def read(pieces):
    got = []
    for chunk_bytes in pieces:
        {line}
        got.append(chunk_bytes)
    return b"".join(got)
"""
ASKS = """
import json
def main():
    from vllm.benchmarks.lib import endpoint_request_func as requests
    print(json.dumps([requests.read([b"data:", b" x "]).decode(), requests.__file__, requests.__name__]))
if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize("line", ["chunk_bytes = chunk_bytes.strip()", "chunk_bytes = chunk_bytes"])
def test_the_client_reads_what_arrives_as_it_is(tmp_path, line):
    for folder in ("", "benchmarks", "benchmarks/lib", "entrypoints", "entrypoints/cli"):
        (tmp_path / "vllm" / folder).mkdir(exist_ok=True, parents=True)
        (tmp_path / "vllm" / folder / "__init__.py").touch()
    module = tmp_path / "vllm" / "benchmarks" / "lib" / "endpoint_request_func.py"
    module.write_text(READS.format(line=line))
    (tmp_path / "vllm" / "entrypoints" / "cli" / "main.py").write_text(ASKS)
    argv = [sys.executable, str(IN_MODEL_ENV / "bench_client.py"), "bench", "serve"]
    env = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == ["data: x ", str(module), "vllm.benchmarks.lib.endpoint_request_func"]
