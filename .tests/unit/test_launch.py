"""Command lines and environments of everything that is started, and ports that nobody has."""

from __future__ import annotations

import socket
from itertools import pairwise

import pytest
from conftest import HARDWARE, planned_point

from servemark import launch
from servemark.records import Gpu, Hardware, Plan, Topology


def plan(**changes) -> Plan:
    values = {
        "deployment": "plain",
        "model": "tiny",
        "environment": "cpu",
        "model_digest": "m",
        "environment_digest": "e",
        "served_name": "tiny",
        "topology": Topology(),
        "options": {"max-model-len": 512, "enforce-eager": True},
        "variables": {},
        "points": (),
        "key_parts": {},
    }
    return Plan(**(values | changes))


def gpu_hardware() -> Hardware:
    gpus = (Gpu(name="NVIDIA H200", memory_mib=143771),)
    return HARDWARE.model_copy(update={"accelerator": "cuda", "gpus": gpus})


@pytest.mark.parametrize(
    ("options", "arguments"),
    [
        ({}, []),
        ({"enforce-eager": True}, ["--enforce-eager"]),
        ({"enable-prefix-caching": False}, ["--no-enable-prefix-caching"]),
        ({"max-model-len": 512, "dtype": "bfloat16"}, ["--max-model-len", "512", "--dtype", "bfloat16"]),
        ({"middleware": ["a.B", "c.D"]}, ["--middleware", "a.B", "c.D"]),
        ({"seed": 0, "quantization": None}, ["--seed", "0"]),
        ({"gpu-memory-utilization": 0.9}, ["--gpu-memory-utilization", "0.9"]),
    ],
)
def test_options_are_spelled_as_vllm_reads_them(options, arguments):
    assert launch.option_arguments(options) == arguments


@pytest.mark.parametrize(
    ("topology", "expected"),
    [
        (Topology(), []),
        (
            Topology(tensor_parallel=2, executor="mp"),
            ["--tensor-parallel-size", "2", "--distributed-executor-backend", "mp"],
        ),
        (
            Topology(tensor_parallel=2, pipeline_parallel=3, executor="ray"),
            ["--tensor-parallel-size", "2", "--pipeline-parallel-size", "3", "--distributed-executor-backend", "ray"],
        ),
    ],
)
def test_the_servers_command_line(topology, expected):
    argv = launch.serve("/env/bin/python", "/models/tiny", plan(topology=topology), "127.0.0.1", 20001)
    assert argv == [
        "/env/bin/python",
        "-m",
        "vllm.entrypoints.cli.main",
        "serve",
        "/models/tiny",
        "--served-model-name",
        "tiny",
        "--host",
        "127.0.0.1",
        "--port",
        "20001",
        *expected,
        "--max-model-len",
        "512",
        "--enforce-eager",
    ]


CPU = {"GLOO_SOCKET_IFNAME": "lo"}
RAY = {
    "SERVEMARK_CPU_RAY": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_SIM_MULTI_NUMA": "0",
}


@pytest.mark.parametrize(
    ("topology", "hardware", "variables", "expected"),
    [
        (Topology(), HARDWARE, {}, CPU),
        (Topology(), HARDWARE, {"HF_HUB_OFFLINE": "0", "X": "1"}, {**CPU, "HF_HUB_OFFLINE": "0", "X": "1"}),
        (Topology(tensor_parallel=2, executor="mp"), HARDWARE, {}, {**CPU, "VLLM_CPU_OMP_THREADS_BIND": "0|1"}),
        (Topology(tensor_parallel=2, executor="ray"), HARDWARE, {}, {**CPU, **RAY}),
        (Topology(tensor_parallel=2, executor="ray"), gpu_hardware(), {}, {}),
    ],
)
def test_the_servers_environment(topology, hardware, variables, expected):
    env = launch.server_environment(plan(topology=topology, variables=variables), hardware, "lo")
    always = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "PYTHONUNBUFFERED": "1"}
    assert env == always | launch.NO_PROXY | expected


def test_ray_is_started_with_a_token_file_without_dashboard_and_in_the_foreground():
    env = launch.ray_environment("/attempt/ray-token", "/tmp/scratch")
    assert (env["RAY_AUTH_MODE"], env["RAY_AUTH_TOKEN_PATH"], env["RAY_TMPDIR"]) == (
        "token",
        "/attempt/ray-token",
        "/tmp/scratch",
    )
    argv = launch.ray_head("/env/bin/python", "127.0.0.1", 20001, 20002, 2, 8, "/tmp/scratch")
    assert argv[:5] == ["/env/bin/python", "-m", "ray.scripts.scripts", "start", "--head"]
    assert {
        "--block",
        "--include-dashboard=false",
        "--node-ip-address=127.0.0.1",
        "--port=20001",
        "--num-gpus=2",
    } < set(argv)
    assert {"--ray-client-server-port=20002", "--num-cpus=8", "--temp-dir=/tmp/scratch"} < set(argv)
    assert "token" not in " ".join(argv)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ["--max-concurrency", "4"]),
        ({"concurrency": None, "request_rate": 2.5}, ["--request-rate", "2.5"]),
        ({"request_rate": 2.0}, ["--max-concurrency", "4", "--request-rate", "2.0"]),
        ({"client_options": {"burstiness": 0.5}}, ["--max-concurrency", "4", "--burstiness", "0.5"]),
    ],
)
def test_the_clients_command_line(changes, expected):
    point = planned_point(3, {}, **changes)
    argv = launch.bench("python", "http://127.0.0.1:20001", "tiny", "/models/tiny", point, "points", ".raw.json.draft")
    assert argv[:5] == ["python", "-m", "vllm.entrypoints.cli.main", "bench", "serve"]
    assert argv[argv.index("--disable-tqdm") + 1 :] == expected
    told = dict(pairwise(argv))
    assert (told["--num-prompts"], told["--seed"], told["--num-warmups"]) == ("4", "3", "1")
    assert (told["--random-input-len"], told["--random-output-len"]) == ("8", "5")
    assert (told["--result-dir"], told["--result-filename"]) == ("points", ".raw.json.draft")
    assert "--ignore-eos" in argv and "--save-detailed" in argv


@pytest.fixture
def taken():
    """A port that somebody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


def test_a_port_that_somebody_has_is_seen(taken):
    assert launch.port_holder("127.0.0.1", taken)
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        assert launch.port_holder("127.0.0.1", port), "bound and not listening yet, as vLLM is while it loads"
    assert not launch.port_holder("127.0.0.1", port)


def test_free_ports_are_free_distinct_and_none_that_is_spoken_for(taken, monkeypatch):
    monkeypatch.setattr(launch, "PORTS", range(taken, taken + 40))
    first = launch.free_ports("127.0.0.1", 3, start=0)
    assert len(set(first)) == 3 and taken not in first
    second = launch.free_ports("127.0.0.1", 2, start=0, taken=first)
    assert not set(first).intersection(second)


def test_the_search_goes_around_and_says_when_there_is_none(taken, monkeypatch):
    monkeypatch.setattr(launch, "PORTS", range(taken, taken + 1))
    with pytest.raises(OSError, match=f"fewer than 1 free ports in {taken}-{taken} on 127.0.0.1"):
        launch.free_ports("127.0.0.1", 1, start=5)


def test_ports_lie_below_those_that_linux_gives_out_by_chance():
    assert launch.PORTS.start > 1024 and launch.PORTS.stop <= 32768
