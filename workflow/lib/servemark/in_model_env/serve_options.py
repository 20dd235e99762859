"""Run by the model environment's interpreter: prints ``vllm serve --help=all``, also where a CUDA build finds no GPU.

vLLM makes its parser only when it knows a device (vllm/config/device.py, "Failed to infer device type"); the options that the parser
takes are the same for all of them (0.32.0: 421 names of the CUDA build without a GPU, and of the CPU build).
"""

import runpy
import sys

from vllm.platforms import current_platform


def main() -> None:
    """Print the options of ``vllm serve``."""
    if not current_platform.device_type:
        type(current_platform).device_type = "cpu"
    sys.argv = ["vllm", "serve", "--help=all"]
    runpy.run_module("vllm.entrypoints.cli.main", run_name="__main__")


if __name__ == "__main__":
    main()
