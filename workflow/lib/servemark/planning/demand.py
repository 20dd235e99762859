"""The load on a deployment and on each of its engines, from the plan's inputs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from servemark.errors import PlanRefused
from servemark.planning import devices, memory
from servemark.planning.all_reduce import all_reduce
from servemark.planning.memory import kv_pool
from servemark.planning.options import GIB, Server, count, flag, max_num_seqs, own_tokens, shared_tokens
from servemark.planning.roofline import Load, bound, unbounded
from servemark.records import EnvironmentCheck, Estimate, Hardware, LoadPoint, Topology
from servemark.weights.architecture import Architecture

SPECULATION = ("speculative-", "spec-")
"""Beginnings of vLLM's options for speculative decoding."""


@dataclass(frozen=True)
class Demand:
    """Everything that advice depends on. Engines (the tp x pp ranks that share one scheduler) have equal shares of the requests.

    ``variables``: of deployment and cluster file; ``inherited``: inherited environment variables that may change results.
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
        """Return the number of engines that serve a point's requests."""
        part = self.topology.asked(point.ask)
        return part.replicas * part.data_parallel

    @property
    def closed(self) -> tuple[LoadPoint, ...]:
        """The load points without a request rate, by increasing concurrency."""
        points = [point for point in self.points if point.concurrency and point.request_rate is None]
        return tuple(sorted(points, key=lambda point: point.concurrency or 0))

    @property
    def speculation(self) -> tuple[str, ...]:
        """The given options of speculative decoding."""
        return tuple(name for name in self.options if name.startswith(SPECULATION))

    @property
    def over_engines(self) -> bool:
        """Whether several engines on GPUs serve one closed load, so that one may get more requests than others."""
        return self.cuda and any(point.ask == "endpoint" and (point.concurrency or 0) > self.engines(point) for point in self.closed)

    @property
    def all_reduce(self) -> tuple[str, ...]:
        """The expected all-reduces between tensor parallel ranks."""
        return all_reduce(self.topology, self.check, self.options, self.variables, self.hardware.accelerator)

    @property
    def graphs(self) -> bool:
        """Whether vLLM captures CUDA graphs."""
        return self.cuda and not flag(self.options, "enforce-eager")

    @cached_property
    def max_num_seqs(self) -> int:
        """Requests that an engine runs at a time."""
        return max_num_seqs(self.options, self.topology, self.hardware)

    def share(self, point: LoadPoint) -> int:
        """Return a point's requests in flight on one engine; 0 if no concurrency limits them."""
        return -(-(point.concurrency or 0) // self.engines(point))

    def running(self, point: LoadPoint) -> int:
        """Return the most requests of a point that one engine runs at a time."""
        return min(self.share(point) or self.max_num_seqs, self.max_num_seqs)

    @cached_property
    def on_one_gpu(self) -> Demand | None:
        """The same load on engines of one GPU in place of each engine of several; None without those, or if that would be refused."""
        size = self.topology.engine_size
        shape = {"tensor_parallel": 1, "pipeline_parallel": 1, "executor": "mp", "replicas": self.topology.replicas * size}
        if not self.cuda or size == 1 or self.topology.data_parallel > 1 or self.architecture.unknown:
            return None
        topology = self.topology.model_copy(update=shape)
        server = replace(self.server, topology=topology, stages=(self.architecture.layers,))
        estimate = memory.estimate(self.architecture, server, self.estimate.max_model_len)
        try:
            memory.require(estimate, server)
        except PlanRefused:
            return None
        return replace(self, server=server, estimate=estimate)

    def cacheable(self, point: LoadPoint) -> float:
        """Return the requests of a point that the KV cache of one engine holds, as estimated; infinity without an estimate."""
        if self.estimate.kv_cache_gib is None:
            return math.inf
        # batched=1: while it decodes, a sliding-window layer holds no other tokens in flight.
        shared, server = shared_tokens(point, self.options), replace(self.server, batched=1)
        each = kv_pool(self.architecture, server, own_tokens(point, self.options) + point.prompts.output_tokens)
        once = kv_pool(self.architecture, server, shared).request_blocks if shared else 0
        return max(0, int(self.estimate.kv_cache_gib * GIB) // each.block_bytes - once) / each.request_blocks

    def chunks_per_s(self, point: LoadPoint, part: float) -> float:
        """Return streamed chunks/s of one client process if the GPUs reach ``part`` of their roofline bound; 0 if unknown."""
        found = {gpu.name: devices.find(gpu) for gpu in self.hardware.gpus}
        device = next(iter(found.values())) if self.cuda and len(found) == 1 else None
        if device is None or self.speculation or unbounded(self.architecture):
            return 0.0
        most = bound(self.architecture, self.topology.asked(point.ask), device, self.bounded(point))
        return most.output_tokens_per_s * part / (count(self.options, "stream-interval") or 1) / point.clients

    def bounded(self, point: LoadPoint) -> Load:
        """Return a point's load for :func:`servemark.planning.roofline.bound`: all requests that run at a time."""
        concurrency = self.running(point) * self.engines(point)
        return Load(concurrency, own_tokens(point, self.options), point.prompts.output_tokens, self.server.element_bytes)
