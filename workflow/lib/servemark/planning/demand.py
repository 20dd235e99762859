"""What a deployment is asked to serve, and what each of its engines gets of that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from servemark.planning.all_reduce import all_reduce
from servemark.planning.lengths import own_tokens, shared_tokens
from servemark.planning.memory import kv_pool
from servemark.planning.options import count, flag, max_num_seqs
from servemark.planning.roofline import DEVICES, bound
from servemark.planning.server import GIB, Server
from servemark.records import EnvironmentCheck, Estimate, Hardware, LoadPoint, Topology
from servemark.weights.architecture import Architecture

SPECULATION = ("speculative-", "spec-")
"""How the names of vLLM's options for speculative decoding begin."""


@dataclass(frozen=True)
class Asked:
    """Everything that advice depends on. An engine is the tp x pp ranks that share one scheduler; requests are spread evenly.

    ``variables`` are the server's, the cluster's included; ``inherited`` those of the shell that reach the server and decide.
    """

    architecture: Architecture
    server: Server
    options: Mapping[str, Any]
    variables: Mapping[str, str]
    points: tuple[LoadPoint, ...]
    estimate: Estimate
    hardware: Hardware
    check: EnvironmentCheck
    inherited: Mapping[str, str] = field(default_factory=dict)

    @property
    def topology(self) -> Topology:
        """Topology of the deployment."""
        return self.server.topology

    @property
    def cuda(self) -> bool:
        """Whether the deployment runs on GPUs."""
        return self.hardware.accelerator == "cuda"

    def engines(self, point: LoadPoint) -> int:
        """Return engines that a point's requests are spread over."""
        part = self.topology.asked(point.ask)
        return part.replicas * part.data_parallel

    @property
    def closed(self) -> tuple[LoadPoint, ...]:
        """The points whose concurrency is the load, from the smallest to the largest; a request rate has no such number."""
        points = [point for point in self.points if point.concurrency and point.request_rate is None]
        return tuple(sorted(points, key=lambda point: point.concurrency or 0))

    @property
    def speculation(self) -> tuple[str, ...]:
        """The options of speculative decoding that are given."""
        return tuple(name for name in self.options if name.startswith(SPECULATION))

    @property
    def shared(self) -> bool:
        """Whether a closed load is spread over several engines on GPUs, so that one may get more than others."""
        return self.cuda and any(point.ask == "endpoint" and (point.concurrency or 0) > self.engines(point) for point in self.closed)

    @property
    def all_reduce(self) -> tuple[str, ...]:
        """The all-reduces that are expected between tensor parallel ranks."""
        return all_reduce(self.topology, self.check, self.options, self.variables, self.hardware.accelerator)

    @property
    def graphs(self) -> bool:
        """Whether CUDA graphs are captured."""
        return self.cuda and not flag(self.options, "enforce-eager")

    @cached_property
    def max_num_seqs(self) -> int:
        """Requests that an engine runs at a time."""
        return max_num_seqs(self.options, self.topology, self.hardware)

    def share(self, point: LoadPoint) -> int:
        """Return requests in flight that a point gives to one engine; 0 when no concurrency limits them."""
        return -(-(point.concurrency or 0) // self.engines(point))

    def running(self, point: LoadPoint) -> int:
        """Return the most requests that one engine runs at a time in a point."""
        return min(self.share(point) or self.max_num_seqs, self.max_num_seqs)

    def held(self, point: LoadPoint) -> float:
        """Return requests of a point that the KV cache of one engine is expected to hold at once."""
        # Decoding: a layer with a window has let go of what was in flight while the prompt was read.
        shared, server = shared_tokens(point, self.options), replace(self.server, batched=1)
        each = kv_pool(self.architecture, server, own_tokens(point, self.options) + point.prompts.output_tokens)
        once = kv_pool(self.architecture, server, shared).request_blocks if shared else 0
        return max(0, int(self.estimate.kv_cache_gib * GIB) // each.block_bytes - once) / each.request_blocks

    def chunks_per_s(self, point: LoadPoint, part: float) -> float:
        """Return streamed chunks/s of one client process when the GPUs reach ``part`` of their roofline bound; 0 if unknown."""
        devices = {DEVICES.get(gpu.name) for gpu in self.hardware.gpus}
        device = devices.pop() if self.cuda and len(devices) == 1 else None
        if device is None or self.speculation or not self.architecture.bits_known:
            return 0.0
        most = bound(
            self.architecture,
            self.topology.asked(point.ask),
            device,
            concurrency=self.running(point) * self.engines(point),
            input_tokens=own_tokens(point, self.options),
            output_tokens=point.prompts.output_tokens,
            kv_element_bytes=self.server.element_bytes,
        )
        return most.output_tokens_per_s * part / (count(self.options, "stream-interval") or 1) / point.clients
