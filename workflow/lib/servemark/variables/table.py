"""The one table of environment variables and families of variables.

To add a variable or a family, add it to one row. The first row that matches a name applies.

=========  ==========================================================================================================
column     meaning
=========  ==========================================================================================================
server     a server gets the value from the environment in which snakemake was started
key        the ledger key holds the value if the cluster file or the deployment sets it
inherited  the ledger key also holds the value if the server gets it from that environment
refused    the configuration may not set it
content    if the value names a file or folder, the ledger key holds its content (``measurement/contents.py``); else the text
=========  ==========================================================================================================

A name that suggests a secret (``secret_names`` of the Slurm executor) is refused in the configuration, and is neither in the ledger key nor
exported to jobs.
"""

import fnmatch
from dataclasses import dataclass
from functools import cache

from snakemake_executor_plugin_slurm_guarded.secret_names import looks_secret


@dataclass(frozen=True)
class Row:
    """Variables with the same columns (see the module's table).

    Attributes:
        names: patterns as of fnmatch(3).
        refused: why the configuration may not set them; None if it may.
        unless: a value that the configuration may set.
    """

    names: tuple[str, ...]
    server: bool
    key: bool
    inherited: bool
    refused: str | None = None
    unless: str | None = None
    content: bool = True


_ADDRESSES = (
    "*_DIR", "*_PATH", "*_FILE", "*_ROOT", "*_HOME", "*_FOLDER", "*_IP", "*_IPS", "*_PORT", "*_ADDR", "*_ADDRESS",
    "*_HOST", "*_HOSTNAME", "*_URL", "*_TOKEN", "*_KEY", "*_KEY_ID", "*_SECRET", "*_PASSWORD", "*TMPDIR", "TMP",
    "TEMP", "PATH", "HOME", "PWD", "USER", "LOGNAME", "HOSTNAME", "HF_*_CACHE", "TRANSFORMERS_CACHE",
    "VLLM_ASSETS_CACHE", "VLLM_MEDIA_CACHE", "SLURM_*", "SLURMD_*", "SRUN_*", "PMI*", "SNAKEMAKE_*", "AWS_*",
)  # fmt: skip

# From the sources of vLLM (0.32.0) and torch (2.13), and the manuals of the libraries that they load.
_FAMILIES = (
    # Communication of ranks: NCCL's list of variables, its plugins, Gloo (torch.distributed), UCX, libfabric (fi_*(7)), verbs.
    "NCCL_", "RCCL_", "OFI_NCCL_", "GLOO_", "CCL_", "UCX_", "UCC_", "FI_", "PSM2_", "PSM3_", "MLX5_", "IBV_", "RDMAV_", "NVSHMEM_", "RAY_",
    # CUDA's programming guide (environment variables), cuBLAS, cuDNN, what compiles kernels; the same of ROCm.
    "CUDA_", "CUBLAS_", "CUBLASLT_", "CUDNN_", "CUTLASS_", "CUTE_DSL_", "NVCC_", "HIP_", "HSA_", "ROCBLAS_", "HIPBLASLT_", "MIOPEN_",
    # torch (torch/_inductor/config.py, torch/_dynamo/config.py, c10/core/AllocatorConfig) and the kernels that vLLM calls.
    "TORCH_", "TORCHINDUCTOR_", "TORCHDYNAMO_", "PYTORCH_", "ATEN_", "TRITON_", "FLASHINFER_", "FLASH_ATTENTION_", "FLA_", "DG_",
    "TILELANG_", "TVM_", "QUACK_", "AITER_", "NUMBA_", "LMCACHE_",
    # Threads, mathematics on CPUs, memory: OpenMP 5.2 chapter 21, libgomp, Intel's runtimes, oneDNN, malloc(3), TCMalloc, mimalloc.
    "OMP_", "GOMP_", "KMP_", "LIBOMP_", "MKL_", "ONEDNN_", "DNNL_", "OPENBLAS_", "BLIS_", "RAYON_", "MALLOC_", "TCMALLOC_", "MIMALLOC_",
)  # fmt: skip

TABLE: tuple[Row, ...] = (
    Row(("CUDA_VISIBLE_DEVICES",), server=True, key=True, inherited=False, refused=
        "servemark sets it for each server to its share of the GPUs. On one machine export it in the shell that starts snakemake; "
        "in a job the scheduler sets it"),
    # The Rust front end gets all arguments of `vllm serve` (vllm/v1/utils.py, RustFrontendProcessManager, 0.25.1 and 0.32.0). In 0.25.1 it
    # exits with code 2 and "not implemented in Rust frontend yet: middleware" (tried), while engines start. Later sources have the same
    # text (rust/src/cmd/src/cli/unsupported.rs). Its own check of an API key covers three prefixes (rust/src/server/.../auth.rs).
    Row(("VLLM_USE_RUST_FRONTEND",), server=False, key=True, inherited=False, unless="0", refused=
        "vLLM's Rust front end exits if it gets the middleware that requires the API key on every route. Its own check covers only "
        "/v1, /v2 and /inference. Remove the variable to use the Python front end, vLLM's default"),
    # Paths of the workflow's own interpreter. Thread counts: Snakemake sets them to a rule's `threads`, which would limit a server to one
    # core. The folder of a vocabulary fits one version of vLLM only.
    Row(("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "VIRTUAL_ENV", "RAY_AUTH_MODE", "OMP_NUM_THREADS", "GOTO_NUM_THREADS",
         "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS", "NUMEXPR_NUM_THREADS", "TIKTOKEN_ENCODINGS_BASE"),
        server=False, key=True, inherited=False),
    # Credentials: vLLM copies HF_* to every Ray worker.
    Row(("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "VLLM_API_KEY", "SERVEMARK_API_KEY", "OPENAI_API_KEY", "RAY_ADDRESS", "RAY_AUTH_TOKEN",
         "RAY_AUTH_TOKEN_PATH"), server=False, key=False, inherited=False),
    # Whole systems of libraries and tools, GiB each, and often other ones on the login node. Kernel, driver and C library are in the key.
    Row(("LD_LIBRARY_PATH",), server=True, key=True, inherited=True, content=False),
    Row(("CUDA_HOME",), server=True, key=True, inherited=False, content=False),
    # Paths, and names like paths, that select the NCCL, the kernels or the rings in use.
    Row(("LD_PRELOAD", "NCCL_TOPO_FILE", "NCCL_GRAPH_FILE", "NCCL_CONF_FILE", "NCCL_TUNER_CONFIG_PATH", "LMCACHE_CONFIG_FILE",
         "TRITON_PTXAS_PATH"), server=True, key=True, inherited=True),
    Row(("VLLM_NCCL_SO_PATH", "VLLM_CUDART_SO_PATH", "VLLM_CUDA_COMPATIBILITY_PATH", "VLLM_RUST_FRONTEND_PATH",
         "VLLM_MODEL_REDIRECT_PATH", "VLLM_TUNED_CONFIG_FOLDER"), server=False, key=True, inherited=False),
    # Folders, addresses, a job's identity, secrets.
    Row(_ADDRESSES, server=True, key=False, inherited=False),
    # Kernels of another GPU; checks of every collective (DETAIL); assertions compiled into kernels.
    Row(("HSA_OVERRIDE_GFX_VERSION", "TORCH_DISTRIBUTED_DEBUG", "TRITON_DEBUG"), server=True, key=True, inherited=True),
    # Set vLLM's other variables in the configuration: then ledger key and report contain them.
    Row(("VLLM_*",), server=False, key=True, inherited=False),
    # Output for monitors and people; more folders; the choice of GPUs, because the ledger key has their names.
    Row(("*_DEBUG", "NCCL_DEBUG_*", "*_LOG*", "*_VERBOSE*", "*_VERBOSITY*", "*_PRINT_*", "*_DISPLAY_*", "*_STACKTRACES", "*_VERSION",
         "NCCL_RAS_*", "RAY_USAGE_STATS_*", "KMP_SETTINGS", "KMP_WARNINGS", "CUDA_CACHE_*", "*_DIRECTORY", "*_DIRS", "*_BASE", "*_BIN",
         "*_LIB", "*_INC", "*_INCLUDE", "NCCL_COMM_ID", "TORCH_TRACE", "*_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"),
        server=True, key=True, inherited=False, content=False),
    Row(tuple(f"{family}*" for family in _FAMILIES), server=True, key=True, inherited=True),
    # Names without a family. Of ``NVIDIA_*`` only this one; the others are the container runtime's.
    Row(("GLIBC_TUNABLES", "GPU_MAX_HW_QUEUES", "LD_AUDIT", "LD_BIND_NOW", "NVIDIA_TF32_OVERRIDE", "PYTHONASYNCIODEBUG", "PYTHONDEVMODE",
         "PYTHONMALLOC", "PYTHONOPTIMIZE", "PYTHONTRACEMALLOC", "TOKENIZERS_PARALLELISM"), server=True, key=True, inherited=True),
    Row(("*",), server=True, key=True, inherited=False),
)  # fmt: skip

# Variable -> its folder, and other variables with the same purpose. DeepGEMM, FlashInfer's tunings and Inductor's code for vLLM's graphs
# are below VLLM_CACHE_ROOT. TORCHINDUCTOR_CACHE_DIR is for other code of Inductor, whose default is /tmp. Humming's locks
# (HUMMING_TMP_DIR) guard its cache, so both are on the same disk (humming/utils/jit.py, 0.1.17). CUDA_CACHE_PATH is for code that the
# driver compiles from PTX. vLLM's wheel has no sm_90 code of Marlin's kernels for experts: 14 of the 34 fat binaries of
# _moe_C_stable_libtorch.abi3.so (0.32.0) have only sm_80, sm_120 and compute_80. In HOME, code of earlier starts would stay, so a start
# with `none` or an empty folder would not be a first start. The driver does not use its cache for libraries that bring code for the GPU.
COMPILE_CACHES: dict[str, tuple[str, tuple[str, ...]]] = {
    "VLLM_CACHE_ROOT": ("vllm", ("XDG_CACHE_HOME",)),
    "TORCHINDUCTOR_CACHE_DIR": ("inductor", ()),
    "TRITON_CACHE_DIR": ("triton", ("TRITON_HOME",)),
    "FLASHINFER_WORKSPACE_BASE": ("flashinfer", ()),
    "TILELANG_CACHE_DIR": ("tilelang", ()),
    "HUMMING_CACHE_DIR": ("humming/cache", ()),
    "HUMMING_TMP_DIR": ("humming/tmp", ()),
    "CUDA_CACHE_PATH": ("ptx", ()),
}
"""Folders of code that servers compile."""


@cache
def row(name: str) -> Row:
    """Return the row of :data:`TABLE` for a variable."""
    return next(one for one in TABLE if any(fnmatch.fnmatchcase(name, pattern) for pattern in one.names))


def in_key(name: str) -> bool:
    """Return whether the ledger key holds a variable that the cluster file or the deployment sets."""
    return row(name).key


def in_key_if_inherited(name: str) -> bool:
    """Return whether the ledger key holds a variable that a server gets from the environment of snakemake."""
    return row(name).inherited and not looks_secret(name)


def of_library(name: str) -> bool:
    """Return whether a container image gets an inherited variable: one of the families, without the host's folders of CUDA."""
    return row(name).server and name.startswith(_FAMILIES) and name not in ("CUDA_HOME", "CUDA_PATH", "CUDA_ROOT", "TORCH_HOME")


def refusal(name: str, value: str) -> str | None:
    """Return why the configuration may not set a variable to this value; None if it may."""
    found = row(name)
    return None if value.strip() == found.unless else found.refused
