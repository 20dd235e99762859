"""The settings that decide the memory of a server's ranks, from vLLM's options and variables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from servemark.planning.options import flag, number, whole
from servemark.records import Hardware, Topology

DEFAULT_UTILISATION = 0.92
"""vLLM's default for gpu-memory-utilization (0.25.1, 0.32.0)."""

GIB = 2**30
CPU_SPACE = "VLLM_CPU_KVCACHE_SPACE"
EXPERT_PARALLEL = "enable-expert-parallel"


@dataclass(frozen=True)
class Server:
    """The settings that decide the memory of a server's ranks, next to the shape of the model.

    Attributes:
        stages: layers of each pipeline stage.
        weight_bytes: tensor bytes of the checkpoint (Manifest.weight_bytes); None for dummy weights.
        memory_gib: GiB of one device in nvidia-smi; on CPU of the node.
        utilisation: gpu-memory-utilization, a share of ``memory_gib``.
        cache_bytes: KV cache of one rank, if an option or variable sets it.
        block_tokens, batched: block-size and max-num-batched-tokens, if set.
        element_bytes: bytes of one KV cache element; None: of the model's dtype.
        spread: ranks have whole experts (enable-expert-parallel).
        sharing: ranks that share one memory; 1 for devices.
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
        """Tokens in flight that sliding-window layers hold in addition to their window: max-num-batched-tokens.

        vLLM's default is 8192 for devices of 70 GiB or more, else 2048, and for CPU 2048 x tp x pp (engine/arg_utils.py). With
        asynchronous scheduling, vLLM 0.32 counts it twice.
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

        On CPU each rank takes the GiB in ``VLLM_CPU_KVCACHE_SPACE``. Without it each server takes its share of the node's whole memory,
        and the second of two servers exits (vllm/v1/worker/cpu_worker.py, 0.32.0).
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
