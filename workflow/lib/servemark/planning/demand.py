"""What a deployment is asked to serve, and what each of its engines gets of that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from servemark.planning import cuda_graphs
from servemark.planning.legality import stages
from servemark.planning.lengths import own_tokens, shared_tokens
from servemark.planning.memory import BLOCK_TOKENS, GIB, Pool, kv_pool
from servemark.planning.options import element_bytes, flag, max_num_seqs, whole
from servemark.records import EnvironmentCheck, Estimate, Hardware, PlannedPoint, Topology
from servemark.weights.architecture import Architecture

SPECULATION = ("speculative-", "spec-")
"""How the names of vLLM's options for speculative decoding begin."""


@dataclass(frozen=True)
class Asked:
    """Everything that advice looks at. An engine is the tp x pp ranks that share one scheduler; requests are spread evenly.

    Attributes:
        variables: the server's, the cluster's included.
        hardware: one node's.
        inherited: the shell's variables that reach the server and decide.
    """

    architecture: Architecture
    topology: Topology
    options: Mapping[str, Any]
    variables: Mapping[str, str]
    points: tuple[PlannedPoint, ...]
    estimate: Estimate
    hardware: Hardware
    check: EnvironmentCheck
    inherited: Mapping[str, str] = field(default_factory=dict)

    @property
    def cuda(self) -> bool:
        return self.hardware.accelerator == "cuda"

    def engines(self, point: PlannedPoint) -> int:
        """Engines that a point's requests are spread over."""
        part = self.topology.asked(point.ask)
        return part.replicas * part.data_parallel

    @property
    def closed(self) -> tuple[PlannedPoint, ...]:
        """The points whose concurrency is the load, from the smallest to the largest; a request rate has no such number."""
        points = [point for point in self.points if point.concurrency and point.request_rate is None]
        return tuple(sorted(points, key=lambda point: point.concurrency or 0))

    @property
    def speculation(self) -> tuple[str, ...]:
        """The options of speculative decoding that are given."""
        return tuple(name for name in self.options if name.startswith(SPECULATION))

    @property
    def graphs(self) -> bool:
        """Whether CUDA graphs are captured."""
        return self.cuda and not flag(self.options, "enforce-eager")

    @cached_property
    def max_num_seqs(self) -> int:
        """Requests that an engine runs at a time."""
        return max_num_seqs(self.options, self.topology, self.hardware)

    def share(self, point: PlannedPoint) -> int:
        """Requests in flight that a point gives to one engine; 0 when no concurrency limits them."""
        return -(-(point.concurrency or 0) // self.engines(point))

    def running(self, point: PlannedPoint) -> int:
        """The most requests that one engine runs at a time in a point."""
        return min(self.share(point) or self.max_num_seqs, self.max_num_seqs)

    def captured(self, point: PlannedPoint) -> int:
        """The largest CUDA graph that an engine needs in a point of known concurrency."""
        return cuda_graphs.needed(self.topology.asked(point.ask), point.concurrency or 0, self.max_num_seqs)

    def held(self, point: PlannedPoint) -> float:
        """Requests of a point that the KV cache of one engine is expected to hold at once."""
        each = self._pool(own_tokens(point, self.options) + point.output_tokens)
        shared = shared_tokens(point, self.options)
        once = self._pool(shared).request_blocks if shared else 0
        return max(0, int(self.estimate.kv_cache_gib * GIB) // each.block_bytes - once) / each.request_blocks

    def _pool(self, tokens: int) -> Pool:
        return kv_pool(
            self.architecture,
            self.topology,
            tokens,
            whole(self.options, "block-size") or BLOCK_TOKENS[self.hardware.accelerator],
            1,  # decoding: a layer with a window has let go of what was in flight while the prompt was read
            element_bytes(self.options),
            stages(self.architecture, self.topology, self.variables),
        )
