"""What an environment's software can do on the nodes: which deployments it can serve, and whether FlashInfer gets its kernels.

FlashInfer takes a kernel from flashinfer-jit-cache, or builds it with ninja, nvcc and a C++ compiler when the server starts. If these are
missing, vLLM turns most of FlashInfer off (has_flashinfer in vllm/utils/flashinfer.py, 0.32.0), but not FlashInfer's sampler: the engine
exits with ``FileNotFoundError: 'ninja'`` at the end of its start.
"""

import re
from collections.abc import Iterable, Mapping

from servemark.errors import PlanRefused
from servemark.machine import visible_gpus
from servemark.records import EnvironmentCheck, Hardware, KernelTools, LoadPoint, Topology
from servemark.weights.architecture import Architecture

VOCABULARY = "TIKTOKEN_ENCODINGS_BASE"
EMBEDDED = (0, 31)
"""The first vLLM whose package contains the vocabulary."""
SAMPLER = "VLLM_USE_FLASHINFER_SAMPLER"
ALL_REDUCE = "VLLM_ALLREDUCE_USE_FLASHINFER"
TOOLKIT = ("CUDA_HOME", "CUDA_PATH", "FLASHINFER_NVCC", "CXX", "PATH")
"""Variables that choose other build tools than the environment check found."""


def require_software(name: str, check: EnvironmentCheck, variables: Mapping[str, str], hardware: Hardware) -> None:
    """Raise PlanRefused if the environment cannot serve on this hardware or with these variables.

    gpt-oss needs the vocabulary o200k_base of the tokenizer library. Up to vLLM 0.30 the server downloads it at its start, or reads it
    from the folder ``TIKTOKEN_ENCODINGS_BASE``. From 0.31 on the package contains it, and the server fails if the variable names a folder
    without it.
    """
    if check.torch_cuda and hardware.accelerator == "cpu" and check.vllm_platform != "cpu":
        hiding = visible_gpus.hiding(hardware)
        raise PlanRefused(
            f"deployments.{name} cannot be served: environment {check.name} is a CUDA {check.torch_cuda} build, and the probed machine "
            f"has no visible GPU{f': {hiding}' if hiding else ''}.",
            do=f"{f'To use its GPUs, {visible_gpus.PROBE_AGAIN}. ' if hiding else ''}Run on a machine with GPUs (on a cluster: set "
            "`partition` and `gpus_per_node` in the cluster file), or use `lock: cpu`.",
            reason="no_gpu",
        )
    if _version(check.vllm) >= EMBEDDED and VOCABULARY in variables:
        raise PlanRefused(
            f"deployments.{name} cannot be served: variables.{VOCABULARY} is set, but vLLM {check.vllm} contains the vocabulary, and the "
            "server fails if that folder does not.",
            do=f"Remove {VOCABULARY} from the deployment's variables and from the cluster file's.",
            reason="bad_option",
        )


def never_streamed(architecture: Architecture, load_format: str, points: Iterable[LoadPoint]) -> list[str]:
    """Return a sentence for each workload whose outputs the server sends as one piece: chats with gpt-oss and random weights.

    The server reads an output of gpt-oss as its chat format (Harmony). Random tokens have no such form: vLLM sends them whole at the end
    (vllm/parser/harmony.py; seen with 0.32.0 on CPU in 24 of 24 outputs).
    """
    if architecture.model_type != "gpt_oss" or load_format != "dummy":
        return []
    return [
        f"workloads.{name}.api: chat: the weights are random (load_format: dummy), and gpt-oss's server cannot read random outputs as its "
        "chat format. It sends each as one piece, so no TTFT and no TPOT can be measured. Use `api: completions`, or real weights."
        for name in sorted({point.workload for point in points if point.api == "chat"})
    ]


def vocabulary_missing(vllm: str, architecture: Architecture, variables: Mapping[str, str]) -> bool:
    """Return whether the server downloads its vocabulary from the internet at its start."""
    return architecture.model_type == "gpt_oss" and _version(vllm) < EMBEDDED and VOCABULARY not in variables


def uuids_unread(vllm: str, hardware: Hardware) -> bool:
    """Return whether CUDA_VISIBLE_DEVICES has UUIDs and this vLLM may not read them (0.25.1 does, vllm/platforms/cuda.py)."""
    return (hardware.cuda_visible_devices or "").startswith(visible_gpus.UUID) and _version(vllm) < (0, 25)


def obstacle(tools: KernelTools, torch_cuda: str | None) -> str | None:
    """Return why FlashInfer cannot build kernels, as a clause; None if it can.

    CUDA's headers refuse a compiler of another release. A toolkit of another major release than torch's links kernels with a libcudart
    that the server does not load.
    """
    if tools.precompiled:
        return None
    if tools.nvcc is None:
        return "the node has no CUDA toolkit (nvcc)"
    if tools.ninja is None:
        return "the node has no ninja in the PATH"
    if tools.compiler is None:
        return "the node has no C++ compiler (c++)"
    if tools.nvcc_cuda is None:
        return f"{tools.nvcc} does not run"
    if tools.headers_cuda and tools.headers_cuda != tools.nvcc_cuda:
        return f"{tools.nvcc} belongs to CUDA {tools.nvcc_cuda}, but the headers next to it belong to CUDA {tools.headers_cuda}"
    if torch_cuda and tools.nvcc_cuda.split(".")[0] != torch_cuda.split(".")[0]:
        return f"{tools.nvcc} belongs to CUDA {tools.nvcc_cuda}, but torch to CUDA {torch_cuda}"
    return None


def turned_off(check: EnvironmentCheck, topology: Topology, variables: Mapping[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the variables that turn off the parts of FlashInfer without kernels, and sentences about them.

    This changes no variable of the deployment or the cluster file, and nothing if they choose a CUDA toolkit.
    """
    tools = check.kernels
    if tools is None or tools.flashinfer is None or any(name in variables for name in TOOLKIT):
        return {}, ()
    if (why := obstacle(tools, check.torch_cuda)) is None:
        return {}, ()
    cannot = f"FlashInfer cannot build kernels here, because {why}"
    wanted = {SAMPLER: tools.sampler, ALL_REDUCE: topology.tensor_parallel > 1 and ALL_REDUCE in check.variables}
    off = {name: "0" for name, used in wanted.items() if used and name not in variables}
    sentences = []
    if off:
        sentences.append(
            f"{cannot}. servemark sets {', '.join(off)} to 0, and vLLM uses its own kernels. To use FlashInfer's, load a CUDA toolkit of "
            "torch's release (`modules` in the cluster file), or add the precompiled kernels (docs/reference/environments.md)."
        )
    if tools.sampler and variables.get(SAMPLER) == "1":
        sentences.append(f"With variables.{SAMPLER}: 1 the server exits at its start: {cannot}. Remove the variable.")
    return off, tuple(sentences)


def _version(text: str) -> tuple[int, int]:
    """Return major and minor version; (0, 0) for a text without them, such as ``dev``."""
    found = re.match(r"(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else (0, 0)
