"""Print ``vllm serve --help=all`` in the model environment, even if a CUDA build finds no GPU.

vLLM needs a device to make its parser (vllm/config/device.py, "Failed to infer device type"). The options are the same for all devices
(0.32.0: 421 names, both of the CUDA build without a GPU and of the CPU build).
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
