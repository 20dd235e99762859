"""Which environment variables another interpreter gets from this process."""

from __future__ import annotations

import os
from collections.abc import Mapping

from servemark.variables.deciding import decides

# What another interpreter must not inherit: paths of the workflow's own one; credentials (vLLM copies HF_* to every Ray worker); the
# thread counts that Snakemake sets to a rule's `threads`, which would hold a whole server to one core; and the folder of a vocabulary,
# right for one version of vLLM and harmful for another, which belongs into the configuration.
_NOT_INHERITED = frozenset(
    [
        "PYTHONPATH",
        "PYTHONHOME",
        "PYTHONSTARTUP",
        "VIRTUAL_ENV",
        "HF_TOKEN",
        "HUGGING_FACE_HUB_TOKEN",
        "VLLM_API_KEY",
        "SERVEMARK_API_KEY",
        "OPENAI_API_KEY",
        "RAY_ADDRESS",
        "RAY_AUTH_TOKEN",
        "RAY_AUTH_MODE",
        "RAY_AUTH_TOKEN_PATH",
        "OMP_NUM_THREADS",
        "GOTO_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "MKL_NUM_THREADS",
        "VECLIB_MAXIMUM_THREADS",
        "NUMEXPR_NUM_THREADS",
        "TIKTOKEN_ENCODINGS_BASE",
    ]
)


def clean_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Our environment without what would mislead another interpreter or hand on credentials, plus ``extra``.

    vLLM's own variables that decide results are left out too: they belong into the configuration, where the ledger's key and the
    report see them.
    """
    return {**handed_on(os.environ), **(extra or {})}


def with_tools_of(program: str, env: Mapping[str, str]) -> dict[str, str]:
    """Return ``env`` with the folder of ``program`` first in PATH, as an activated environment has it; unchanged for a bare name."""
    folder = os.path.dirname(program)
    return {**env, "PATH": f"{folder}:{env.get('PATH', os.defpath)}"} if os.path.isabs(program) else dict(env)


def handed_on(env: Mapping[str, str]) -> dict[str, str]:
    """What of an environment :func:`clean_environment` hands on."""
    kept = {name: value for name, value in env.items() if name not in _NOT_INHERITED}
    return {name: value for name, value in kept.items() if not (name.startswith("VLLM_") and decides(name))}
