"""Variables of the shell that starts snakemake which reach the servers and decide speed or answers.

Sites set some of them in modules on purpose (fabric plugins), so they are handed on; what reaches a server unseen would be measured under
the key of a server without it. So they stand in the plan, in the ledger's key and on the page.

Taken is the environment of the main process, which local stages and jobs of a scheduler inherit (``slurm.submit.exported``). Not seen
from there is what is added on a node: by a prolog of the scheduler, by a login shell's profile before ``modules`` are loaded, and by
files that libraries read for themselves (``~/.nccl.conf``).
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping

from servemark.records import Topology
from servemark.security.names import looks_secret
from servemark.variables.deciding import decides
from servemark.variables.passed_on import handed_on

FAMILIES = (
    # How ranks reach each other: NCCL's list of variables, its plugins, Gloo (torch.distributed), UCX, libfabric (fi_*(7)), verbs.
    "NCCL_", "RCCL_", "OFI_NCCL_", "GLOO_", "CCL_", "UCX_", "UCC_", "FI_", "PSM2_", "PSM3_", "MLX5_", "IBV_", "RDMAV_", "NVSHMEM_", "RAY_",
    # CUDA's programming guide (environment variables), cuBLAS, cuDNN, what compiles kernels; the same of ROCm.
    "CUDA_", "CUBLAS_", "CUBLASLT_", "CUDNN_", "CUTLASS_", "CUTE_DSL_", "NVCC_", "HIP_", "HSA_", "ROCBLAS_", "HIPBLASLT_", "MIOPEN_",
    # torch (torch/_inductor/config.py, torch/_dynamo/config.py, c10/core/AllocatorConfig) and the kernels that vLLM calls.
    "TORCH_", "TORCHINDUCTOR_", "TORCHDYNAMO_", "PYTORCH_", "ATEN_", "TRITON_", "FLASHINFER_", "FLASH_ATTENTION_", "FLA_", "DG_",
    "TILELANG_", "TVM_", "QUACK_", "AITER_", "NUMBA_", "LMCACHE_",
    # Threads, mathematics on CPUs, memory: OpenMP 5.2 chapter 21, libgomp, Intel's runtimes, oneDNN, malloc(3), TCMalloc, mimalloc.
    "OMP_", "GOMP_", "KMP_", "LIBOMP_", "MKL_", "ONEDNN_", "DNNL_", "OPENBLAS_", "BLIS_", "RAYON_", "MALLOC_", "TCMALLOC_", "MIMALLOC_",
)  # fmt: skip
"""How the names begin that vLLM (0.32.0), torch (2.13) and what they load read: from their sources and the libraries' manuals."""

SINGLE = frozenset({
    "GLIBC_TUNABLES", "GPU_MAX_HW_QUEUES", "LD_AUDIT", "LD_BIND_NOW", "LD_LIBRARY_PATH", "LD_PRELOAD", "NVIDIA_TF32_OVERRIDE",
    "PYTHONASYNCIODEBUG", "PYTHONDEVMODE", "PYTHONMALLOC", "PYTHONOPTIMIZE", "PYTHONTRACEMALLOC", "TOKENIZERS_PARALLELISM",
})  # fmt: skip
"""Names of no family. Of ``NVIDIA_*`` this one alone: the others are the container runtime's."""

TELLING = (
    # What is printed, and what only a monitor or a person reads.
    "*_DEBUG", "NCCL_DEBUG_*", "*_LOG*", "*_VERBOSE*", "*_VERBOSITY*", "*_PRINT_*", "*_DISPLAY_*", "*_STACKTRACES", "*_VERSION",
    "NCCL_RAS_*", "RAY_USAGE_STATS_*", "KMP_SETTINGS", "KMP_WARNINGS",
    # Places beside those of PLACE_VARIABLES: toolkits, caches, folders, an address.
    "CUDA_HOME", "CUDA_CACHE_*", "*_DIRECTORY", "*_DIRS", "*_BASE", "*_BIN", "*_LIB", "*_INC", "*_INCLUDE", "NCCL_COMM_ID", "TORCH_TRACE",
    # Which GPUs: what they are is in the key (visible_gpus).
    "*_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER",
)  # fmt: skip
"""Patterns of names within the families that say where things are, what they are, or what to print."""

TELLING_NOT = frozenset({"HSA_OVERRIDE_GFX_VERSION", "TORCH_DISTRIBUTED_DEBUG", "TRITON_DEBUG"})
"""Exceptions: kernels of another GPU; checks of every collective (DETAIL); assertions compiled into kernels."""


def deciding(env: Mapping[str, str], topology: Topology, given: Mapping[str, str]) -> dict[str, str]:
    """The variables of an environment that a server inherits and that decide, by name.

    An empty value is none: the libraries take it for unset. Secrets are left out by their names, as everywhere.

    Args:
        given: the cluster's variables and the deployment's own, which win and are in the key already.
    """
    return {
        name: value
        for name, value in sorted(handed_on(env).items())
        if value and name not in given and _decides(name) and _reaches(name, topology)
    }


def _decides(name: str) -> bool:
    if not (name.startswith(FAMILIES) or name in SINGLE) or looks_secret(name) or not decides(name):
        return False
    return name in TELLING_NOT or not any(fnmatch.fnmatchcase(name, pattern) for pattern in TELLING)


def _reaches(name: str, topology: Topology) -> bool:
    """Whether a server gets the shell's value and uses it: ``launch.server_environment`` sets some names itself.

    Every server gets its own interface for NCCL. With Ray it is Ray's processes that get it, and vLLM copies the
    shell's from the server over it (vllm/ray/ray_env.py, v1/executor/ray_executor.py, 0.32.0). ``LD_LIBRARY_PATH`` is where NCCL finds
    the network's plugin, which within a node it has no use for; what vLLM itself loads lies in its environment, and so the many paths
    that modules leave there make no other key of a server on one node.
    """
    if name == "NCCL_SOCKET_IFNAME":
        return topology.executor == "ray"
    return topology.nodes > 1 if name == "LD_LIBRARY_PATH" else name != "GLOO_SOCKET_IFNAME"
