"""What an environment can serve, told before anything is started."""

from __future__ import annotations

import re
from collections.abc import Mapping

from servemark.errors import PlanRefused
from servemark.machine import visible_gpus
from servemark.records import EnvironmentCheck, Hardware
from servemark.weights.architecture import Architecture

VOCABULARY = "TIKTOKEN_ENCODINGS_BASE"
EMBEDDED = (0, 31)
"""The first vLLM whose package contains the vocabulary."""


def require_software(name: str, check: EnvironmentCheck, variables: Mapping[str, str], hardware: Hardware) -> None:
    """Raise PlanRefused for an environment that cannot serve on this hardware, or with these variables.

    gpt-oss needs the tokenizer library's vocabulary o200k_base. Up to vLLM 0.30 the server fetches it when it starts, or reads it from the
    folder ``TIKTOKEN_ENCODINGS_BASE``. From 0.31 on it is in the package, and the variable makes the server fail if the file is not there.
    """
    if check.torch_cuda and hardware.accelerator == "cpu" and check.vllm_platform != "cpu":
        hiding = visible_gpus.hiding(hardware)
        raise PlanRefused(
            f"deployments.{name} cannot be served: environment {check.name} is a CUDA {check.torch_cuda} build, and the probed machine "
            f"has no GPU{f' for us: {hiding}' if hiding else ''}.",
            do=f"{f'To use its GPUs, {visible_gpus.PROBE_AGAIN}. ' if hiding else ''}Run where the GPUs are (on a cluster: `partition` and "
            "`gpus_per_node` in the cluster file), or use `lock: cpu`.",
            reason="no_gpu",
        )
    if _version(check.vllm) >= EMBEDDED and VOCABULARY in variables:
        raise PlanRefused(
            f"deployments.{name} cannot be served: variables.{VOCABULARY} is set, and vLLM {check.vllm} carries the vocabulary itself; "
            "a folder without it would make the server fail.",
            do=f"Remove {VOCABULARY} from the deployment's variables and from the cluster file's.",
            reason="bad_option",
        )


def vocabulary_missing(vllm: str, architecture: Architecture, variables: Mapping[str, str]) -> bool:
    """Return whether the server fetches its vocabulary from the internet when it starts."""
    return architecture.model_type == "gpt_oss" and _version(vllm) < EMBEDDED and VOCABULARY not in variables


def uuids_unread(vllm: str, hardware: Hardware) -> bool:
    """Return whether GPUs are named by UUID for a vLLM that may not read UUIDs (0.25.1 does, vllm/platforms/cuda.py)."""
    return (hardware.cuda_visible_devices or "").startswith(visible_gpus.UUID) and _version(vllm) < (0, 25)


def _version(text: str) -> tuple[int, int]:
    """Return major and minor version; of a build that does not state them (``dev``), the oldest."""
    found = re.match(r"(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else (0, 0)
