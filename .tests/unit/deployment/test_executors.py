"""Each executor's part of a server's command line and of its ranks' variables."""

from __future__ import annotations

import pytest

from builders.deployed import HARDWARE
from builders.launching import NODE, executor, plan
from servemark.deployment import executors
from servemark.deployment.executors import Executor
from servemark.launch import command_lines, compile_cache
from servemark.planning.placement import place
from servemark.records import Topology
from servemark.records.topology import EXECUTORS


@pytest.mark.parametrize("name", EXECUTORS)
def test_each_executor_has_its_own_class(tmp_path, told, name):
    found = type(executor(tmp_path, told, plan(topology=Topology.model_construct(executor=name))))
    assert issubclass(found, Executor) and found.__module__ == f"{executors.__name__}.{name}"


MP = ["--distributed-executor-backend", "mp"]
RAY = ["--distributed-executor-backend", "ray"]
SPANS = {"nodes": 2, "devices_per_node": 2, "tensor_parallel": 2, "pipeline_parallel": 2}
SIZES = ["--tensor-parallel-size", "2", "--pipeline-parallel-size", "2"]
TOGETHER = ["--nnodes", "2", "--master-addr", "10.0.0.1", "--master-port", "20001"]
DP4 = {"nodes": 2, "devices_per_node": 2, "data_parallel": 4, "executor": "mp"}
DP4_OF = ["--data-parallel-size", "4", "--data-parallel-size-local", "2", "--data-parallel-address"]


@pytest.mark.parametrize(
    ("topology", "number", "expected"),
    [
        ({}, 0, []),
        ({"tensor_parallel": 2, "executor": "mp"}, 0, ["--tensor-parallel-size", "2", *MP]),
        ({**SPANS, "executor": "ray"}, 0, [*SIZES, *RAY]),
        ({**SPANS, "executor": "mp"}, 0, [*SIZES, *MP, *TOGETHER, "--node-rank", "0"]),
        (
            {**SPANS, "executor": "mp"},
            1,
            [*SIZES, *MP, *TOGETHER, "--node-rank", "1", "--headless"],
        ),
        ({"data_parallel": 2, "executor": "mp"}, 0, [*MP, "--data-parallel-size", "2"]),
        (DP4, 0, [*MP, *DP4_OF, "10.0.0.1", "--data-parallel-rpc-port", "20001"]),
        (
            DP4,
            1,
            [
                *MP, *DP4_OF, "10.0.0.1", "--data-parallel-rpc-port", "20001",
                "--headless", "--data-parallel-start-rank", "2",
            ],
        ),
        (
            {"nodes": 4, "data_parallel": 4, "executor": "mp"},
            3,
            [
                *MP, "--data-parallel-size", "4", "--data-parallel-size-local", "1", "--data-parallel-address",
                "10.0.0.1", "--data-parallel-rpc-port", "20001", "--headless", "--data-parallel-start-rank", "3",
            ],
        ),
        (
            {**DP4, "executor": "ray"},
            0,
            [*RAY, "--data-parallel-size", "4", "--data-parallel-backend", "ray", "--data-parallel-address", "10.0.0.1",
             "--data-parallel-size-local", "2"],
        ),
        (
            {"nodes": 2, "tensor_parallel": 2, "data_parallel": 1, "replicas": 2, "executor": "ray"},
            0,
            ["--tensor-parallel-size", "2", *RAY],
        ),
    ],
)  # fmt: skip
def test_command_line_of_the_server(tmp_path, told, topology, number, expected):
    asked = plan(topology=Topology(**topology))
    argv = command_lines.serve(
        "/env/bin/python",
        "/models/tiny",
        asked,
        "10.0.0.7",
        20001,
        executor(tmp_path, told, asked).processes(0, place(asked.topology)[0])[number],
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
        ({}, "cpu", {"PYTHONPATH": "/mine"}, {"PYTHONPATH": f"{command_lines.MIDDLEWARE_FOLDER}:/mine"}),
        ({}, "cpu", {"VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "5"}, {"VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "5"}),
    ],
)
def test_environment_of_the_server(tmp_path, told, topology, accelerator, variables, expected):
    asked = plan(topology=Topology(**topology), variables=variables)
    hardware = HARDWARE.model_copy(update={"accelerator": accelerator})
    env = executor(tmp_path, told, asked, hardware=hardware).environment(NODE)
    always = {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "PYTHONUNBUFFERED": "1",
        "VLLM_HOST_IP": "10.0.0.1",
        "GLOO_SOCKET_IFNAME": "lo" if asked.topology.nodes_of_a_replica == 1 else "hsn0",
        "VLLM_RPC_BASE_PATH": "/tmp/scratch",
        **compile_cache.variables("/tmp/scratch/compiled", {}),
        "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "120",
        "PYTHONPATH": str(command_lines.MIDDLEWARE_FOLDER),
    }
    assert env == always | command_lines.NO_PROXY | expected
