"""What experience says of the kernels that vLLM chooses by itself; see ``advice`` for how to read the sources."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from packaging.version import InvalidVersion, Version

from servemark.planning.asked import Asked

OPTION = "moe-backend"

HOPPER = ("H100", "H200", "H800", "H20", "GH200")
"""Parts of the names that nvidia-smi gives GPUs of compute capability 9.0."""

HUMMING_SINCE = Version("0.25.1")
"""Release whose ``--moe-backend`` was tried with ``humming``; 0.32.0 has it too (vllm/config/kernel.py)."""


def mxfp4_experts(asked: Asked) -> Iterator[str]:
    """gpt-oss's experts in MXFP4 on Hopper: vLLM takes Triton's kernels (model_executor/layers/fused_moe/oracle/mxfp4.py, 0.25.1).

    One H200, vLLM 0.25.1, TP1, 1024 tokens in and out, all four servers of one sitting on one host, total tokens/s:

    | requests | triton | marlin | humming |
    |---|---|---|---|
    | 128 (VALID) | 14,394 | 11,035 | 14,783 |
    | 512 (SUSPECT: client processes out of step) | 17,383 | 16,702 | 20,231 |

    First start: 57, 10 and 12 s of graph capture. Four replicas with humming gave 22,260 a GPU at 512 requests each (VALID). Its layout of
    the weights took 64.5 GiB where Triton's took 61.3. FlashInfer's CUTLASS kernels were not there to be compared; models other than
    gpt-oss get another list of kernels.
    """
    names = {gpu.name for gpu in asked.hardware.gpus}
    if (
        not asked.cuda
        or asked.architecture.model_type != "gpt_oss"
        or asked.architecture.quantisation != "mxfp4"
        or asked.options.get(OPTION) not in (None, "auto")
        or OPTION not in asked.check.serve_options
        or not names
        or not all(set(HOPPER) & set(name.replace("-", " ").split()) for name in names)
        or not _since(asked.check.vllm, HUMMING_SINCE)
    ):
        return
    yield (
        f"The experts' weights are MXFP4 and options.{OPTION} is left to vLLM. With gpt-oss-120b on one H200 (vLLM 0.25.1) "
        f"that meant Triton's kernels: 17,383 tokens/s at 512 requests, where options.{OPTION}: humming gave 20,231 and "
        "marlin 16,702; 14,394, 14,783 and 11,035 at 128 requests; and 57 s of graph capture on a first start instead of 12. Measure a "
        f"deployment with options.{OPTION}: humming beside it."
    )


def _since(version: str, first: Version) -> bool:
    try:
        return Version(version).release >= first.release
    except InvalidVersion:
        return False


RULES: tuple[Callable[[Asked], Iterator[str]], ...] = (mxfp4_experts,)
