"""The all-reduces that a tensor parallel engine uses, and the switches that turn NVLink multicast off.

The names and their order are vLLM's (_log_all_reduce_backend_selection in distributed/device_communicators/cuda_communicator.py, 0.32.0).
``fuse_allreduce_rms`` is its compilation pass that calls FlashInfer's all-reduce fused with RMS norm.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from servemark.planning.options import flag
from servemark.planning.software import ALL_REDUCE, obstacle
from servemark.records import EnvironmentCheck, Topology

FUSED = "fuse_allreduce_rms"
SYMMETRIC = "VLLM_ALLREDUCE_USE_SYMM_MEM"
SWITCHES = {
    "FLASHINFER": f'variables.{ALL_REDUCE}: "0"',
    FUSED: "options.compilation-config: {pass_config: {fuse_allreduce_rms: false}}",
    "SYMM_MEM": f'variables.{SYMMETRIC}: "0"',
    "PYNCCL": 'variables.NCCL_NVLS_ENABLE: "0"',
}
"""All-reduces that may use multicast, and the setting that turns each off. CUSTOM reads its peers' memory and needs no multicast.

Sources: vllm/envs.py (0.32.0) and NCCL's list of variables. ``TORCH_SYMM_MEM_DISABLE_MULTICAST`` (torch/csrc/distributed) and
``NVSHMEM_DISABLE_NVLS`` (NVSHMEM's list) turn multicast off below vLLM.
"""

_SELECTED = re.compile(r"Using (\[[^\]]*\]) all-reduce backends \(in dispatch order\) for group 'tp:")
_FUSED_ON = re.compile(r"'fuse_allreduce_rms': True")


def all_reduce(
    topology: Topology, check: EnvironmentCheck, options: Mapping[str, Any], variables: Mapping[str, str], accelerator: str
) -> tuple[str, ...]:
    """Return the expected all-reduces in vLLM's order; () for one rank or on CPU.

    Across nodes Hopper uses NCCL only. This ignores the multi-node NVLink of Blackwell racks.
    """
    if topology.tensor_parallel == 1 or accelerator != "cuda":
        return ()
    if topology.tensor_parallel > topology.devices_per_node:
        return ("PYNCCL",)
    tools = check.kernels
    flashinfer = tools is not None and tools.flashinfer is not None and obstacle(tools, check.torch_cuda) is None
    used = {
        FUSED: flashinfer and ALL_REDUCE in check.variables and _fuses(options),
        "FLASHINFER": flashinfer and _on(ALL_REDUCE, check, variables),
        "CUSTOM": not flag(options, "disable-custom-all-reduce"),
        "SYMM_MEM": _on(SYMMETRIC, check, variables),
        "PYNCCL": True,
    }
    return tuple(name for name, chosen in used.items() if chosen)


def observed(log: str) -> tuple[str, ...]:
    """Return the all-reduces that a server's log names for its tensor parallel group."""
    found = _SELECTED.search(log)
    if found is None:
        return ()
    names = tuple(re.findall(r"\w+", found[1]))
    return ((FUSED,) if _FUSED_ON.search(log) else ()) + names


def multicast(ways: tuple[str, ...], variables: Mapping[str, str]) -> dict[str, object] | bool:
    """Return the all-reduces that may use NVLink multicast and their switches; False if only NCCL may, as in every vLLM."""
    off = {"PYNCCL"} if variables.get("NCCL_NVLS_ENABLE") == "0" else set()
    may = [name for name in SWITCHES if name in ways and name not in off]
    switches = "; ".join(SWITCHES[name] for name in may)
    return bool(set(may) - {"PYNCCL"}) and {"ways": ", ".join(ways), "may": ", ".join(may), "switches": switches}


def _on(name: str, check: EnvironmentCheck, variables: Mapping[str, str]) -> bool:
    """Return whether this vLLM has the switch and it is not off."""
    return name in check.variables and variables.get(name, "1") != "0"


def _fuses(options: Mapping[str, Any]) -> bool:
    """Return whether the pass may run: from -O2, the default, on Hopper and Blackwell; not in eager mode (config/vllm.py, 0.32.0)."""
    if flag(options, "enforce-eager") or str(options.get("optimization-level", 2)) in ("0", "1"):
        return False
    config = options.get("compilation-config")
    if isinstance(config, str):
        try:
            config = json.loads(config)
        except ValueError:
            return True
    passes = config.get("pass_config") if isinstance(config, Mapping) else None
    return not (isinstance(passes, Mapping) and passes.get(FUSED) is False)
