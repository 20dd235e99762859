"""Which environment variables are part of the ledger key."""

from __future__ import annotations

import fnmatch

PLACE_VARIABLES = (
    "*_DIR", "*_PATH", "*_FILE", "*_ROOT", "*_HOME", "*_FOLDER", "*_IP", "*_IPS", "*_PORT", "*_ADDR", "*_ADDRESS",
    "*_HOST", "*_HOSTNAME", "*_URL", "*_TOKEN", "*_KEY", "*_KEY_ID", "*_SECRET", "*_PASSWORD", "*TMPDIR", "TMP",
    "TEMP", "PATH", "HOME", "PWD", "USER", "LOGNAME", "HOSTNAME", "HF_*_CACHE", "TRANSFORMERS_CACHE",
    "VLLM_ASSETS_CACHE", "VLLM_MEDIA_CACHE", "SLURM_*", "SLURMD_*", "SRUN_*", "PMI*", "SNAKEMAKE_*", "AWS_*",
)  # fmt: skip
"""Patterns of variables that hold a place, an address, a job's identity or a secret."""

DECIDING_VARIABLES = (
    "LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH", "CUDA_HOME", "VLLM_NCCL_SO_PATH", "VLLM_CUDART_SO_PATH",
    "VLLM_CUDA_COMPATIBILITY_PATH", "VLLM_RUST_FRONTEND_PATH", "VLLM_MODEL_REDIRECT_PATH", "VLLM_TUNED_CONFIG_FOLDER",
    "NCCL_TOPO_FILE", "NCCL_GRAPH_FILE", "NCCL_CONF_FILE", "NCCL_TUNER_CONFIG_PATH",
)  # fmt: skip
"""Exceptions to the patterns: they choose which NCCL, which kernels or which rings run, so they decide the figures.

``NCCL_SOCKET_IFNAME`` and its like match no pattern: the interface decides which network is measured.
"""


def decides(variable: str) -> bool:
    """Whether a server's environment variable belongs in the key."""
    if variable in DECIDING_VARIABLES:
        return True
    return not any(fnmatch.fnmatchcase(variable, pattern) for pattern in PLACE_VARIABLES)
