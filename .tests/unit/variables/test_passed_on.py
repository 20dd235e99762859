"""Inherited environment variables that decide a server's speed or output."""

from __future__ import annotations

import pytest

from builders.deployed import HARDWARE
from builders.launching import NODE, executor, plan
from servemark.launch import command_lines
from servemark.records import Topology
from servemark.variables import passed_on

ONE, TWO = Topology(), Topology(nodes=2, tensor_parallel=2, executor="mp")
TWO_BY_RAY = Topology(nodes=2, tensor_parallel=2, executor="ray")

DECIDING = """
NCCL_ALGO NCCL_PROTO NCCL_NET NCCL_NET_PLUGIN NCCL_IB_HCA NCCL_P2P_DISABLE NCCL_TOPO_FILE NCCL_CROSS_NIC
OFI_NCCL_PROTOCOL FI_PROVIDER FI_CXI_DISABLE_HOST_REGISTER UCX_TLS UCX_NET_DEVICES GLOO_DEVICE_TRANSPORT PSM3_RDMA RAY_CGRAPH_overlap
CUDA_LAUNCH_BLOCKING CUDA_DEVICE_MAX_CONNECTIONS CUDA_MODULE_LOADING CUDA_MPS_ACTIVE_THREAD_PERCENTAGE CUBLAS_WORKSPACE_CONFIG
NVIDIA_TF32_OVERRIDE HSA_OVERRIDE_GFX_VERSION HIP_FORCE_DEV_KERNARG
TORCH_NCCL_ASYNC_ERROR_HANDLING TORCH_BLAS_PREFER_CUBLASLT TORCH_DISTRIBUTED_DEBUG TORCHINDUCTOR_MAX_AUTOTUNE TORCHDYNAMO_DISABLE
PYTORCH_ALLOC_CONF ATEN_CPU_CAPABILITY TRITON_DEBUG TRITON_INTERPRET FLASHINFER_DISABLE_JIT
OMP_PROC_BIND OMP_WAIT_POLICY GOMP_CPU_AFFINITY KMP_AFFINITY KMP_LIBRARY MKL_CBWR ONEDNN_MAX_CPU_ISA MALLOC_CONF GLIBC_TUNABLES
LD_PRELOAD TOKENIZERS_PARALLELISM PYTHONDEVMODE
"""

OTHER = """
NCCL_DEBUG NCCL_DEBUG_SUBSYS NCCL_DEBUG_FILE NCCL_VERSION NCCL_COMM_ID NCCL_TOPO_DUMP_FILE NCCL_RAS_ENABLE NCCL_HOME NCCL_ROOT
FI_LOG_LEVEL UCX_LOG_LEVEL UCX_DIR GLOO_LOG_LEVEL GLOO_SOCKET_IFNAME RAY_BACKEND_LOG_LEVEL RAY_TMPDIR RAY_ADDRESS RAY_AUTH_TOKEN
CUDA_VISIBLE_DEVICES CUDA_DEVICE_ORDER CUDA_HOME CUDA_PATH CUDA_ROOT CUDA_VERSION CUDA_CACHE_PATH CUDA_CACHE_MAXSIZE
CUDA_MPS_PIPE_DIRECTORY HIP_VISIBLE_DEVICES CUDNN_LOGINFO_DBG NVIDIA_VISIBLE_DEVICES NVIDIA_DRIVER_CAPABILITIES
TORCH_HOME TORCH_LOGS TORCH_CPP_LOG_LEVEL TORCH_SHOW_CPP_STACKTRACES TORCH_EXTENSIONS_DIR TORCH_TRACE TORCH_NCCL_DEBUG_INFO_TEMP_FILE
TORCHINDUCTOR_CACHE_DIR TORCHDYNAMO_VERBOSE TRITON_CACHE_DIR TRITON_HOME TRITON_PRINT_AUTOTUNING FLASHINFER_WORKSPACE_BASE
OMP_NUM_THREADS MKL_NUM_THREADS OPENBLAS_NUM_THREADS OMP_DISPLAY_ENV KMP_SETTINGS MKL_VERBOSE MKLROOT
LD_LIBRARY_PATH PATH HOME LANG PYTHONPATH PYTHONUNBUFFERED SLURM_JOB_ID VLLM_ATTENTION_BACKEND VLLM_CACHE_ROOT HF_HOME HF_TOKEN
NCCL_TOKEN FI_PROVIDER_KEY UCX_PASSWORD EDITOR
"""
DECIDE, DO_NOT = DECIDING.split(), OTHER.split()


def taken(*names: str, topology: Topology = ONE, given: dict[str, str] | None = None) -> list[str]:
    return list(passed_on.deciding(dict.fromkeys(names, "x"), topology, given or {}))


def test_deciding_variables_are_returned_sorted_with_their_values():
    env = {"UCX_TLS": "rc", "NCCL_ALGO": "Ring", "PATH": "/usr/bin", "NCCL_DEBUG": "INFO"}
    found = passed_on.deciding(env, ONE, {})
    assert list(found.items()) == [("NCCL_ALGO", "Ring"), ("UCX_TLS", "rc")]


@pytest.mark.parametrize("name", DECIDE)
def test_deciding_variable_is_included(name):
    assert taken(name) == [name]


@pytest.mark.parametrize("name", DO_NOT)
def test_other_variable_is_left_out(name):
    assert taken(name) == []


def test_empty_variable_is_left_out():
    assert passed_on.deciding({"LD_PRELOAD": "", "NCCL_ALGO": "Ring"}, ONE, {}) == {"NCCL_ALGO": "Ring"}


def test_variable_of_the_configuration_is_left_out():
    assert taken("NCCL_ALGO", "NCCL_PROTO", given={"NCCL_ALGO": "Tree"}) == ["NCCL_PROTO"]


@pytest.mark.parametrize(
    ("name", "topologies"),
    [
        ("LD_LIBRARY_PATH", [TWO, TWO_BY_RAY]),
        ("NCCL_SOCKET_IFNAME", [TWO_BY_RAY]),
        ("GLOO_SOCKET_IFNAME", []),
    ],
)
def test_topology_decides_whether_a_server_uses_the_inherited_value(name, topologies):
    assert [shape for shape in (ONE, TWO, TWO_BY_RAY) if taken(name, topology=shape)] == topologies


@pytest.mark.parametrize("topology", [ONE, TWO, TWO_BY_RAY], ids=["one", "two", "two by Ray"])
@pytest.mark.parametrize("accelerator", ["cuda", "cpu"])
def test_variables_that_servemark_sets_are_left_out(tmp_path, told, topology, accelerator):
    """With Ray the interface for NCCL is the exception."""
    hardware = HARDWARE.model_copy(update={"accelerator": accelerator})
    own = executor(tmp_path, told, plan(topology=topology), hardware=hardware).environment(NODE, (0, 1))
    own |= command_lines.ray_environment("/token", "/tmp/a")
    left = {"NCCL_SOCKET_IFNAME"} if accelerator == "cuda" and topology == TWO_BY_RAY else set()
    assert {"GLOO_SOCKET_IFNAME", "TORCHINDUCTOR_CACHE_DIR"} <= own.keys()
    assert set(taken(*own, topology=topology)) == left


def test_deciding_variables_are_in_the_environment_of_a_daemon(monkeypatch):
    for name in (*DECIDE, *DO_NOT):
        monkeypatch.setenv(name, "x")
    for topology in (ONE, TWO, TWO_BY_RAY):
        found = passed_on.deciding(dict.fromkeys((*DECIDE, *DO_NOT), "x"), topology, {})
        assert found and found.items() <= passed_on.clean_environment().items()
