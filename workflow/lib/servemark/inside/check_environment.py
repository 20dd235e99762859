"""Run by the model environment's own interpreter: import what serving needs, move one tensor, write the facts as JSON.

usage: python check_environment.py OUTPUT
"""

import json
import platform
import sys


def main(output: str) -> None:
    import torch
    import vllm
    from vllm.platforms import current_platform

    warnings = []
    try:
        import ray

        ray_version = ray.__version__
    except ImportError as error:
        ray_version = None
        warnings.append(f"Ray cannot be imported: {error}")
    nccl = None
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        nccl = ".".join(str(part) for part in torch.cuda.nccl.version())
    if float(torch.ones(2, device=device).sum()) != 2.0:
        raise SystemExit(f"torch cannot add two numbers on {device}")
    facts = {
        "python_version": platform.python_version(),
        "vllm": vllm.__version__,
        "torch": torch.__version__,
        "torch_cuda": torch.version.cuda,
        "ray": ray_version,
        "nccl": nccl,
        "vllm_platform": current_platform.device_type or "none",
        "warnings": warnings,
    }
    with open(output, "w") as stream:
        json.dump(facts, stream)


if __name__ == "__main__":
    main(sys.argv[1])
