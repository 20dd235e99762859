"""Whether FlashInfer gets its kernels on the nodes, and which uses of it the plan turns off where it cannot.

FlashInfer takes a kernel from flashinfer-jit-cache, or builds it with ninja, nvcc and a C++ compiler when the server starts. vLLM turns
most of FlashInfer off by itself where these are missing (has_flashinfer in vllm/utils/flashinfer.py, 0.32.0). It does not check this
for FlashInfer's sampler, so the engine exits with ``FileNotFoundError: 'ninja'`` at the end of its start.
"""

from __future__ import annotations

from collections.abc import Mapping

from servemark.records import EnvironmentCheck, KernelTools, Topology

SAMPLER = "VLLM_USE_FLASHINFER_SAMPLER"
ALL_REDUCE = "VLLM_ALLREDUCE_USE_FLASHINFER"
TOOLKIT = ("CUDA_HOME", "CUDA_PATH", "FLASHINFER_NVCC", "CXX", "PATH")
"""Variables that name other tools than those that the environment check found."""


def obstacle(tools: KernelTools, torch_cuda: str | None) -> str | None:
    """Return why FlashInfer cannot build kernels, as a clause; None if it can.

    A compiler and headers of two releases are refused by CUDA's own headers. A toolkit of another major release than torch's links
    kernels with a libcudart that the server does not load.
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
    """Return the variables that turn off what FlashInfer cannot build on the nodes, and a sentence that says so.

    A variable that the deployment or the cluster file sets is left alone, and so is everything where they name a CUDA toolkit.
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
            f"{', '.join(off)} set to 0: {cannot}. vLLM's own kernels are used instead. To use FlashInfer's, load a CUDA toolkit of "
            "torch's release (`modules` in the cluster file), or add the precompiled kernels (docs/reference/environments.md)."
        )
    if tools.sampler and variables.get(SAMPLER) == "1":
        sentences.append(f"variables.{SAMPLER}: 1 makes the server end at its start: {cannot}. Remove the variable.")
    return off, tuple(sentences)
