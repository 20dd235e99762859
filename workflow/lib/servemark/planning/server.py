"""What decides the memory of a server's ranks, read from vLLM's options and variables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from servemark.planning.options import flag, number, whole
from servemark.records import Hardware, Topology

DEFAULT_UTILISATION = 0.92
"""vLLM's default for gpu-memory-utilization (0.25.1, 0.32.0); 0.9 before."""

GIB = 2**30
CPU_SPACE = "VLLM_CPU_KVCACHE_SPACE"
EXPERT_PARALLEL = "enable-expert-parallel"


@dataclass(frozen=True)
class Server:
    """What decides the memory of a server's ranks next to the shape of the model.

    Attributes:
        stages: layers of each pipeline stage.
        weight_bytes: the checkpoint's tensor bytes (Manifest.weight_bytes); None without a checkpoint (dummy weights).
        memory_gib: GiB of one device as nvidia-smi states it; on CPU of the node.
        utilisation: gpu-memory-utilization, a share of ``memory_gib``.
        cache_bytes: KV cache of one rank where an option or variable fixes it.
        block_tokens, batched: block-size and max-num-batched-tokens, where set.
        element_bytes: bytes of one element of the KV cache; None: as the model's dtype.
        spread: ranks have whole experts (enable-expert-parallel), none is cut.
        sharing: ranks whose weights and caches lie in the same memory; 1 for devices with their own.
    """

    topology: Topology
    stages: tuple[int, ...]
    weight_bytes: int | None
    accelerator: Literal["cpu", "cuda"]
    memory_gib: float
    utilisation: float = DEFAULT_UTILISATION
    cache_bytes: int | None = None
    block_tokens: int | None = None
    batched: int | None = None
    element_bytes: int | None = None
    spread: bool = False
    sharing: int = 1

    @property
    def batched_tokens(self) -> int:
        """Tokens in flight that sliding-window layers hold beside their window.

        Without max-num-batched-tokens, vLLM's default: 8192 for devices of 70 GiB or more, else 2048 (engine/arg_utils.py); for CPU
        2048 x tp x pp. From 0.32 vLLM counts it once more with asynchronous scheduling.
        """
        if self.accelerator == "cpu":
            return self.batched or 2048 * self.topology.engine_size
        return self.batched or (8192 if self.memory_gib >= 70 else 2048)

    @classmethod
    def read(
        cls,
        topology: Topology,
        stages: tuple[int, ...],
        weight_bytes: int | None,
        options: Mapping[str, Any],
        variables: Mapping[str, str],
        hardware: Hardware,
    ) -> Server:
        """Read vLLM's options and variables; raise PlanRefused if one is not a number.

        On CPU each rank of a node takes the GiB that ``VLLM_CPU_KVCACHE_SPACE`` states. Without it each server of a node takes its share of
        the whole memory, and the second of two servers ends (vllm/v1/worker/cpu_worker.py, 0.32.0).
        """
        cpu = hardware.accelerator == "cpu"
        space = variables.get(CPU_SPACE) if cpu else None
        sharing = topology.devices_per_node if space else -(-topology.replicas // topology.nodes)
        return cls(
            topology,
            stages,
            weight_bytes,
            hardware.accelerator,
            memory_gib=hardware.memory_gib if cpu else min(gpu.memory_mib for gpu in hardware.gpus) / 1024,
            utilisation=number("gpu-memory-utilization", options.get("gpu-memory-utilization") or DEFAULT_UTILISATION),
            cache_bytes=int(number(CPU_SPACE, space) * GIB) if space else whole(options, "kv-cache-memory-bytes"),
            block_tokens=whole(options, "block-size"),
            batched=whole(options, "max-num-batched-tokens"),
            element_bytes=1 if str(options.get("kv-cache-dtype", "")).startswith("fp8") else None,
            spread=bool(flag(options, EXPERT_PARALLEL)),
            sharing=sharing if cpu else 1,
        )
