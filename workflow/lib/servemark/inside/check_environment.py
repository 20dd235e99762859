"""Run by the model environment's own interpreter: import what serving needs, move one tensor, write the facts as JSON.

usage: python check_environment.py OUTPUT
"""

import importlib.metadata
import importlib.util
import json
import platform
import sys

KERNELS = (
    "FlashInfer's kernels are not in the environment: a server that needs them fetches and compiles them when it starts, which "
    "takes minutes and fails without internet or compiler. envs/README.md says how to add them"
)


def version(name: str) -> str | None:
    """The installed version, or None."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def main(output: str) -> None:
    import torch
    import vllm
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
    # A CUDA build knows its NCCL also where there is no GPU.
    nccl = ".".join(str(part) for part in torch.cuda.nccl.version()) if torch.version.cuda else None
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if float(torch.ones(2, device=device).sum()) != 2.0:
        raise SystemExit(f"torch cannot add two numbers on {device}")
    facts = {
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
        "warnings": warnings,
    }
    with open(output, "w") as stream:
        json.dump(facts, stream)


if __name__ == "__main__":
    main(sys.argv[1])
