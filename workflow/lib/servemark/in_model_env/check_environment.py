"""Describe the model environment, whose interpreter runs this script.

usage: python check_environment.py facts OUTPUT   import the packages of a server, add one tensor, write facts as JSON
       python check_environment.py model_class ARCHITECTURE   have vLLM describe a model's class in VLLM_CACHE_ROOT
       python check_environment.py versions       print versions, packages and loaded modules as JSON, without importing the packages
"""

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

KERNELS = (
    "FlashInfer's kernels are not in the environment. A server builds those that it uses at its start. This takes minutes and needs a CUDA "
    "toolkit on the node. docs/reference/environments.md shows how to add the kernels."
)


def version(name: str) -> str | None:
    """Return the installed version, or None."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def kernel_tools(envs: Any) -> dict[str, Any]:
    """Return the tools by which FlashInfer gets kernels on this machine; see ``records.KernelTools``.

    Follows flashinfer/jit/cpp_ext.py, get_cuda_path and generate_ninja_build_for_op (0.7.0), and vllm/utils/flashinfer.py (0.32.0).
    """
    flashinfer, cache = version("flashinfer-python"), version("flashinfer-jit-cache")
    nvcc = shutil.which(os.environ.get("FLASHINFER_NVCC", str(cuda_home() / "bin" / "nvcc")))
    return {
        "flashinfer": flashinfer,
        # The wheel's version has CUDA behind a plus sign: 0.7.0.post1+cu130.
        "precompiled": flashinfer is not None and cache is not None and cache.split("+")[0] == flashinfer.split("+")[0],
        "sampler": bool(getattr(envs, "VLLM_USE_FLASHINFER_SAMPLER", False)),
        "nvcc": nvcc,
        "nvcc_cuda": nvcc and nvcc_cuda(nvcc),
        "headers_cuda": headers_cuda(cuda_home() / "include" / "cuda.h"),
        "ninja": shutil.which("ninja"),
        "compiler": shutil.which((shlex.split(os.environ.get("CXX", "")) or ["c++"])[0]),
    }


def cuda_home() -> Path:
    """Return the folder of the CUDA toolkit, searched in FlashInfer's order."""
    if named := os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH"):
        return Path(named)
    nvcc = shutil.which("nvcc")
    return Path(nvcc).parents[1] if nvcc else Path("/usr/local/cuda")


def nvcc_cuda(nvcc: str) -> str | None:
    """Return the CUDA version of a compiler, or None if it does not run."""
    try:
        text = subprocess.run([nvcc, "--version"], capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r"release (\d+\.\d+),", text)
    return found and found[1]


def headers_cuda(header: Path) -> str | None:
    """Return the CUDA version in cuda.h (13000 is 13.0), or None without that file."""
    try:
        found = re.search(r"^#define CUDA_VERSION (\d+)", header.read_text(errors="replace"), re.MULTILINE)
    except OSError:
        return None
    return f"{int(found[1]) // 1000}.{int(found[1]) % 1000 // 10}" if found else None


def facts(output: str) -> None:
    """Write the facts to ``output``; raise SystemExit if torch cannot compute."""
    import torch
    import vllm
    from vllm import envs
    from vllm.envs import environment_variables
    from vllm.platforms import current_platform

    warnings = []
    try:
        import ray

        ray_version = ray.__version__
    except ImportError as error:
        ray_version = None
        warnings.append(f"Ray cannot be imported: {error}")
    # As vllm/utils/flashinfer.py does (warn_if_flashinfer_kernels_missing, 0.32.0).
    if torch.version.cuda and version("flashinfer-python") not in (None, version("flashinfer-cubin")):
        warnings.append(KERNELS)
    # A CUDA build reports its NCCL version even without a GPU.
    nccl = ".".join(str(part) for part in torch.cuda.nccl.version()) if torch.version.cuda else None
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if float(torch.ones(2, device=device).sum()) != 2.0:
        raise SystemExit(f"torch cannot add two numbers on {device}")
    found = {
        "python_version": platform.python_version(),
        "vllm": vllm.__version__,
        "torch": torch.__version__,
        "torch_cuda": torch.version.cuda,
        "ray": ray_version,
        "router": importlib.util.find_spec("vllm_router") is not None,
        "nccl": nccl,
        "vllm_platform": current_platform.device_type or "none",
        "tensor_on": device,
        "variables": sorted(name for name in environment_variables if name.startswith("VLLM_")),
        "kernels": kernel_tools(envs) if torch.version.cuda else None,
        "warnings": warnings,
    }
    with open(output, "w") as stream:
        json.dump(found, stream)


def model_class(architecture: str) -> None:
    """Have vLLM describe a model's class, as a server does at its first start; raise SystemExit if it cannot.

    On a node without the build's device, vLLM would describe the class of another platform: some models have a class for each.
    """
    from vllm import ModelRegistry
    from vllm.platforms import current_platform

    if not current_platform.device_type:
        raise SystemExit("vLLM detects no device on this node")
    if architecture not in ModelRegistry.get_supported_archs():
        raise SystemExit(f"vLLM {version('vllm')} does not contain this architecture")
    ModelRegistry.models[architecture].inspect_model_cls()
    if not any(Path(os.environ["VLLM_CACHE_ROOT"]).glob("modelinfos/*.json")):
        raise SystemExit(f"vLLM {version('vllm')} keeps no descriptions of model classes")


def versions() -> None:
    """Print what nodes of one deployment must have in common, without importing the packages.

    A distribution's RECORD has the digests of its files. To read these lists takes less than a second; to read the files takes a minute.
    """
    every = {
        re.sub(r"[-_.]+", "-", one.metadata["Name"]).lower(): (
            one.version,
            hashlib.sha256((one.read_text("RECORD") or "").encode()).hexdigest(),
        )
        for one in importlib.metadata.distributions()
    }
    found = {
        "python": platform.python_version(),
        **{name: version(name) for name in ("vllm", "ray", "torch")},
        "nccl": next((number for name, (number, _) in sorted(every.items()) if name.startswith("nvidia-nccl")), None),
        "packages": hashlib.sha256(json.dumps(every, sort_keys=True).encode()).hexdigest(),
        "loaded_modules": [name for name in os.environ.get("LOADEDMODULES", "").split(":") if name],
        "distributions": {name: f"{number} ({digest[:12]})" for name, (number, digest) in every.items()},
    }
    print(json.dumps(found))


if __name__ == "__main__":
    modes: dict[str, Any] = {"facts": facts, "model_class": model_class, "versions": versions}
    modes[sys.argv[1]](*sys.argv[2:])
