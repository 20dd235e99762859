"""Command lines and environments of everything that is started, and ports that nobody has."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from builders.deployed import planned_point
from builders.launching import NODE, plan
from servemark.launch import api_key, command_lines, random_weights
from servemark.records import Topology


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
    assert command_lines.option_arguments(options) == arguments


MP = ["--distributed-executor-backend", "mp"]
RAY = ["--distributed-executor-backend", "ray"]
SPANS = {"nodes": 2, "devices_per_node": 2, "tensor_parallel": 2, "pipeline_parallel": 2}
SIZES = ["--tensor-parallel-size", "2", "--pipeline-parallel-size", "2"]
TOGETHER = ["--master-addr", "10.0.0.1", "--master-port", "20009"]
DP4 = {"nodes": 2, "devices_per_node": 2, "data_parallel": 4, "executor": "mp"}
DP4_OF = ["--data-parallel-size", "4", "--data-parallel-size-local", "2", "--data-parallel-address"]


def rank(index: int, nodes: int = 2) -> command_lines.Rank:
    return command_lines.Rank(nodes, index, "10.0.0.1", 20009)


@pytest.mark.parametrize(
    ("topology", "of", "expected"),
    [
        ({}, None, []),
        ({"tensor_parallel": 2, "executor": "mp"}, None, ["--tensor-parallel-size", "2", *MP]),
        ({**SPANS, "executor": "ray"}, None, [*SIZES, *RAY]),
        ({**SPANS, "executor": "mp"}, rank(0), [*SIZES, *MP, "--nnodes", "2", "--node-rank", "0", *TOGETHER]),
        (
            {**SPANS, "executor": "mp"},
            rank(1),
            [*SIZES, *MP, "--nnodes", "2", "--node-rank", "1", *TOGETHER, "--headless"],
        ),
        ({"data_parallel": 2, "executor": "mp"}, None, [*MP, "--data-parallel-size", "2"]),
        (DP4, rank(0), [*MP, *DP4_OF, "10.0.0.1", "--data-parallel-rpc-port", "20009"]),
        (
            DP4,
            rank(1),
            [
                *MP, *DP4_OF, "10.0.0.1", "--data-parallel-rpc-port", "20009",
                "--headless", "--data-parallel-start-rank", "2",
            ],
        ),
        (
            {"nodes": 4, "data_parallel": 4, "executor": "mp"},
            rank(3, nodes=4),
            [
                *MP, "--data-parallel-size", "4", "--data-parallel-size-local", "1", "--data-parallel-address",
                "10.0.0.1", "--data-parallel-rpc-port", "20009", "--headless", "--data-parallel-start-rank", "3",
            ],
        ),
        (
            {**DP4, "executor": "ray"},
            None,
            [*RAY, "--data-parallel-size", "4", "--data-parallel-backend", "ray", "--data-parallel-address", "10.0.0.7",
             "--data-parallel-size-local", "2"],
        ),
        (
            {"nodes": 2, "tensor_parallel": 2, "data_parallel": 1, "replicas": 2, "executor": "ray"},
            None,
            ["--tensor-parallel-size", "2", *RAY],
        ),
    ],
)  # fmt: skip
def test_the_servers_command_line(topology, of, expected):
    argv = command_lines.serve(
        "/env/bin/python", "/models/tiny", plan(topology=Topology(**topology)), "10.0.0.7", 20001, of
    )
    assert argv == [
        "/env/bin/python",
        "-m",
        "vllm.entrypoints.cli.main",
        "serve",
        "/models/tiny",
        "--served-model-name",
        "tiny",
        "--host",
        "10.0.0.7",
        "--port",
        "20001",
        *expected,
        "--max-model-len",
        "512",
        "--enforce-eager",
        "--middleware",
        "servemark_require_key.RequireKey",
    ]


CPU_RAY = {
    "SERVEMARK_CPU_RAY": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_SIM_MULTI_NUMA": "0",
}


@pytest.mark.parametrize(
    ("topology", "accelerator", "variables", "expected"),
    [
        ({}, "cpu", {}, {}),
        ({}, "cuda", {}, {"NCCL_SOCKET_IFNAME": "=lo"}),
        ({}, "cpu", {"HF_HUB_OFFLINE": "0", "X": "1"}, {"HF_HUB_OFFLINE": "0", "X": "1"}),
        ({"tensor_parallel": 2, "executor": "mp"}, "cpu", {}, {"VLLM_CPU_OMP_THREADS_BIND": "0|1"}),
        ({**SPANS, "executor": "mp"}, "cpu", {}, {"VLLM_CPU_OMP_THREADS_BIND": "0|1"}),
        ({**DP4}, "cpu", {}, {"VLLM_CPU_OMP_THREADS_BIND": "0|1"}),
        ({"nodes": 2, "replicas": 2, "executor": "mp"}, "cpu", {}, {"SERVEMARK_HEALTH_WITHOUT_KEY": "1"}),
        ({"tensor_parallel": 2, "executor": "ray"}, "cpu", {}, CPU_RAY),
        ({"tensor_parallel": 2, "executor": "ray"}, "cuda", {}, {"NCCL_SOCKET_IFNAME": "=lo"}),
        (
            {"nodes": 2, "replicas": 4, "tensor_parallel": 2, "executor": "mp"},
            "cuda",
            {},
            {"NCCL_SOCKET_IFNAME": "=lo", "SERVEMARK_HEALTH_WITHOUT_KEY": "1"},
        ),
        ({}, "cuda", {"NCCL_SOCKET_IFNAME": "ib"}, {"NCCL_SOCKET_IFNAME": "ib"}),
        ({**SPANS, "executor": "ray"}, "cuda", {}, {"NCCL_SOCKET_IFNAME": "=hsn0"}),
        (
            {**SPANS, "executor": "ray"},
            "cuda",
            {"NCCL_SOCKET_IFNAME": "ib", "GLOO_SOCKET_IFNAME": "eth1"},
            {"NCCL_SOCKET_IFNAME": "ib", "GLOO_SOCKET_IFNAME": "eth1"},
        ),
        (
            {**DP4, "executor": "ray"},
            "cuda",
            {},
            {"NCCL_SOCKET_IFNAME": "=hsn0", "VLLM_RAY_DP_PACK_STRATEGY": "strict"},
        ),
        (
            {"nodes": 4, "tensor_parallel": 2, "data_parallel": 2, "executor": "ray"},
            "cuda",
            {},
            {"NCCL_SOCKET_IFNAME": "=hsn0", "VLLM_RAY_DP_PACK_STRATEGY": "span"},
        ),
        ({}, "cpu", {"PYTHONPATH": "/mine"}, {"PYTHONPATH": f"{api_key.DOORS}:/mine"}),
        ({}, "cpu", {"VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "5"}, {"VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "5"}),
    ],
)
def test_the_servers_environment(topology, accelerator, variables, expected):
    asked = plan(topology=Topology(**topology), variables=variables)
    env = command_lines.server_environment(asked, accelerator, NODE, "/tmp/scratch")
    always = {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "PYTHONUNBUFFERED": "1",
        "VLLM_HOST_IP": "10.0.0.1",
        "GLOO_SOCKET_IFNAME": "lo" if asked.topology.nodes_of_a_replica == 1 else "hsn0",
        "VLLM_RPC_BASE_PATH": "/tmp/scratch",
        "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "120",
        "PYTHONPATH": str(api_key.DOORS),
    }
    assert env == always | command_lines.NO_PROXY | expected


CACHES = {
    "VLLM_CACHE_ROOT": "/cache/x/vllm",
    "TORCHINDUCTOR_CACHE_DIR": "/cache/x/inductor",
    "TRITON_CACHE_DIR": "/cache/x/triton",
    "FLASHINFER_WORKSPACE_BASE": "/cache/x/flashinfer",
    "TILELANG_CACHE_DIR": "/cache/x/tilelang",
}


@pytest.mark.parametrize(
    ("variables", "changed"),
    [
        ({}, {}),
        ({"TRITON_CACHE_DIR": "/mine"}, {"TRITON_CACHE_DIR": "/mine"}),
        ({"TRITON_HOME": "/mine"}, {"TRITON_CACHE_DIR": None}),
        ({"XDG_CACHE_HOME": "/mine"}, {"VLLM_CACHE_ROOT": None}),
    ],
)
def test_compiled_code_goes_where_it_is_found_again_unless_the_deployment_says_another_place(variables, changed):
    env = command_lines.server_environment(plan(variables=variables), "cuda", NODE, "/tmp/scratch", "/cache/x")
    assert {name: env.get(name) for name in CACHES} == CACHES | changed
    assert not CACHES.keys() & command_lines.server_environment(plan(), "cuda", NODE, "/tmp/scratch").keys()


def test_a_server_with_random_weights_finds_the_plugin_beside_the_doors_and_no_other_does():
    random = plan(options={"load-format": random_weights.LOAD_FORMAT}, variables={"PYTHONPATH": "/mine"})
    path = command_lines.server_environment(random, "cuda", NODE, "/tmp/scratch")["PYTHONPATH"]
    assert path == f"{random_weights.FOLDER}:{api_key.DOORS}:/mine"
    assert (
        str(random_weights.FOLDER)
        not in command_lines.server_environment(plan(), "cuda", NODE, "/tmp/scratch")["PYTHONPATH"]
    )


def test_ray_is_told_of_its_token_by_a_file():
    env = command_lines.ray_environment("/attempt/ray-token", "/tmp/scratch")
    assert (env["RAY_AUTH_MODE"], env["RAY_AUTH_TOKEN_PATH"], env["RAY_TMPDIR"]) == (
        "token",
        "/attempt/ray-token",
        "/tmp/scratch",
    )


PINNED = {
    "--node-manager-port": "20002",
    "--object-manager-port": "20003",
    "--runtime-env-agent-port": "20004",
    "--metrics-export-port": "20005",
    "--min-worker-port": "0",
    "--max-worker-port": "0",
}


@pytest.mark.parametrize(
    ("head", "role", "devices", "cpus"),
    [
        (
            None,
            {
                "--head": "", "--port": "20000", "--ray-client-server-port": "20001",
                "--include-dashboard": "false", "--no-monitor": "",
            },
            2,
            "8",
        ),
        ("10.0.0.9:20500", {"--address": "10.0.0.9:20500"}, 16, "16"),
    ],
    ids=["head", "worker"],
)  # fmt: skip
def test_ray_on_a_node_stays_in_the_foreground_and_on_its_ports(head, role, devices, cpus):
    argv = command_lines.ray_node("/env/bin/python", NODE, devices, "/tmp/scratch", range(20000, 20006), head)
    assert argv[:4] == ["/env/bin/python", "-m", "ray.scripts.scripts", "start"]
    told = {name: value for name, _, value in (word.partition("=") for word in argv[4:])}
    assert told == role | PINNED | {
        "--block": "",
        "--node-ip-address": "10.0.0.1",
        "--num-gpus": str(devices),
        "--num-cpus": cpus,
        "--disable-usage-stats": "",
        "--object-store-memory": "200000000",
        "--temp-dir": "/tmp/scratch",
    }


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
    argv = command_lines.bench(
        "python", "http://127.0.0.1:20001", "tiny", "/models/tiny", point, "points", ".raw.json.draft"
    )
    assert Path(argv[1]).is_file() and [argv[0], Path(argv[1]).name, *argv[2:4]] == [
        "python",
        "bench_client.py",
        "bench",
        "serve",
    ]
    assert argv[argv.index("--disable-tqdm") + 1 :] == expected
    told = dict(pairwise(argv))
    assert (told["--num-prompts"], told["--seed"], told["--num-warmups"]) == ("4", "3", "1")
    assert (told["--random-input-len"], told["--random-output-len"]) == ("8", "5")
    assert (told["--result-dir"], told["--result-filename"]) == ("points", ".raw.json.draft")
    assert "--ignore-eos" in argv and "--save-detailed" in argv
