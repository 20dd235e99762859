"""What an environment can serve, told before anything is started."""

from __future__ import annotations

import re
from collections.abc import Mapping

from servemark.errors import PlanRefused
from servemark.machine import visible_gpus
from servemark.records import EnvironmentCheck
from servemark.weights.architecture import Architecture

VOCABULARY = "TIKTOKEN_ENCODINGS_BASE"
READS_UUIDS = (0, 25)
"""Read in the sources of 0.25.1 (vllm/platforms/cuda.py, device_control_id_to_physical_device_id)."""


def software(
    name: str,
    check: EnvironmentCheck,
    architecture: Architecture,
    variables: Mapping[str, str],
    accelerator: str,
    hiding: str = "",
    devices_named: str | None = None,
) -> tuple[str, ...]:
    """What speaks against serving this model in this environment: one sentence each.

    gpt-oss needs the tokenizer library's vocabulary o200k_base. Up to vLLM 0.30 it is fetched at start, or read from the folder
    that ``TIKTOKEN_ENCODINGS_BASE`` names; from 0.31 on (oss-harmony) it lies in the package, and the variable, where it names a
    folder without that file, makes the server fail.

    Args:
        hiding: what CUDA_VISIBLE_DEVICES keeps from us of the probed machine, if anything.
        devices_named: that variable's value where the machine was probed.

    Raises:
        PlanRefused: a CUDA build without a GPU, or the variable where it does harm.
    """
    to_use_them = f"To use its GPUs, {visible_gpus.PROBE_AGAIN}. " if hiding else ""
    if check.torch_cuda and accelerator == "cpu" and check.vllm_platform != "cpu":
        raise PlanRefused(
            f"deployments.{name} cannot be served: environment {check.name} is a CUDA {check.torch_cuda} build, and the probed machine "
            f"has no GPU{f' for us: {hiding}' if hiding else ''}.",
            do=f"{to_use_them}Run where the GPUs are (on a cluster: `partition` and `gpus_per_node` in the cluster file), or use "
            "`lock: cpu`.",
            reason="no_gpu",
        )
    embedded = _version(check.vllm) >= (0, 31)
    if embedded and VOCABULARY in variables:
        raise PlanRefused(
            f"deployments.{name} cannot be served: variables.{VOCABULARY} is set, and vLLM {check.vllm} carries the vocabulary itself; "
            "a folder without it would make the server fail.",
            do=f"Remove {VOCABULARY} from the deployment's variables and from the cluster file's.",
            reason="bad_option",
        )
    against = []
    if not embedded and architecture.model_type == "gpt_oss" and VOCABULARY not in variables:
        against.append(
            f"vLLM {check.vllm} fetches gpt-oss's vocabulary from the internet when it starts: on nodes without internet set "
            f"variables.{VOCABULARY} to a folder that holds o200k_base.tiktoken."
        )
    if (devices_named or "").startswith(visible_gpus.UUID) and _version(check.vllm) < READS_UUIDS:
        against.append(
            f"{visible_gpus.VARIABLE} names GPUs by UUID, which vLLM from 0.25.1 on reads; of {check.vllm} that is not known, and older "
            "ones were reported to end with `invalid literal for int()`. Export their numbers instead (`nvidia-smi -L`)."
        )
    return tuple(against)


def _version(text: str) -> tuple[int, int]:
    """Major and minor version; of a build that does not say (``dev``), the oldest."""
    found = re.match(r"(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else (0, 0)
