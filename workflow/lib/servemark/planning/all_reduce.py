"""Which all-reduces a tensor parallel engine uses, and how a site turns NVLink multicast off.

Names are vLLM's own (_log_all_reduce_backend_selection in distributed/device_communicators/cuda_communicator.py, 0.32.0), in the order
in which it tries them; ``fuse_allreduce_rms`` is its compilation pass that calls FlashInfer's all-reduce fused with RMS norm.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from servemark.planning.flashinfer import ALL_REDUCE, obstacle
from servemark.planning.options import flag
from servemark.records import EnvironmentCheck, Topology

FUSED = "fuse_allreduce_rms"
SYMMETRIC = "VLLM_ALLREDUCE_USE_SYMM_MEM"
SWITCHES = {
    "FLASHINFER": f'variables.{ALL_REDUCE}: "0"',
    FUSED: "options.compilation-config: {pass_config: {fuse_allreduce_rms: false}}",
    "SYMM_MEM": f'variables.{SYMMETRIC}: "0"',
    "PYNCCL": 'variables.NCCL_NVLS_ENABLE: "0"',
}
"""Each way that may use multicast, and what turns it off. CUSTOM reads its peers' memory and uses none.

Sources: vllm/envs.py (0.32.0); NCCL's list of variables. ``TORCH_SYMM_MEM_DISABLE_MULTICAST`` (torch/csrc/distributed) and
``NVSHMEM_DISABLE_NVLS`` (NVSHMEM's list) turn it off below vLLM.
"""

_SELECTED = re.compile(r"Using (\[[^\]]*\]) all-reduce backends \(in dispatch order\) for group 'tp:")
_FUSED_ON = re.compile(r"'fuse_allreduce_rms': True")


def all_reduce(
    topology: Topology, check: EnvironmentCheck, options: Mapping[str, Any], variables: Mapping[str, str], accelerator: str
) -> tuple[str, ...]:
    """Return the all-reduces that are expected, in vLLM's order; none for one rank or on CPU.

    Over several nodes NCCL alone is left on Hopper; what Blackwell racks (MNNVL) add is not planned.
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
    """Return the all-reduces that a server's log names for its tensor parallel group; none where it names none."""
    found = _SELECTED.search(log)
    if found is None:
        return ()
    names = tuple(re.findall(r"\w+", found[1]))
    return ((FUSED,) if _FUSED_ON.search(log) else ()) + names


def multicast(ways: tuple[str, ...], variables: Mapping[str, str]) -> dict[str, object] | bool:
    """Return the all-reduces that may use NVLink multicast and their switches; False where only NCCL may, as in every version of vLLM."""
    off = {"PYNCCL"} if variables.get("NCCL_NVLS_ENABLE") == "0" else set()
    may = [name for name in SWITCHES if name in ways and name not in off]
    switches = "; ".join(SWITCHES[name] for name in may)
    return bool(set(may) - {"PYNCCL"}) and {"ways": ", ".join(ways), "may": ", ".join(may), "switches": switches}


def _on(name: str, check: EnvironmentCheck, variables: Mapping[str, str]) -> bool:
    """Return whether vLLM has the switch, which is on unless it is turned off."""
    return name in check.variables and variables.get(name, "1") != "0"


def _fuses(options: Mapping[str, Any]) -> bool:
    """Return whether the pass may run: on from -O2, the default, on Hopper and Blackwell; compiled graphs only (config/vllm.py, 0.32.0)."""
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
