"""Rank the topologies that can serve a model on some nodes: the fewest GPUs first, as ``servemark plan`` and ``topology: auto`` need it.

Legality, memory, roofline and advice are those of a plan (``plan_deployment.py``): this module only lists topologies and orders them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import zip_longest
from typing import Any

from servemark.config.topology import AskedTopology
from servemark.errors import PlanRefused
from servemark.planning import cuda_graphs, legality, memory
from servemark.planning.advice import advise
from servemark.planning.demand import Demand
from servemark.planning.devices import Device
from servemark.planning.options import EXPERT_PARALLEL, Server, flag
from servemark.planning.roofline import Bound, Latencies, Load, bound, least_latencies, unbounded
from servemark.planning.topologies import legal
from servemark.records import EnvironmentCheck, Estimate, Hardware, LoadPoint
from servemark.weights.architecture import Architecture

MAX_NODES = 32
"""Nodes up to which the fewest are searched for if their number is not given."""
ADVICE = (
    "pipeline_spans_nodes", "stages_idle", "one_gpu_suffices", "data_parallel_instead", "replicas_in_turn", "engines_uneven",
    "queueing", "cache_too_small",
)  # fmt: skip
"""Advice that concerns the choice of a topology; a plan has more."""
TARGETS = ("ttft_ms", "tpot_ms", "e2el_ms")
"""Latencies that a target may limit, in milliseconds."""


@dataclass(frozen=True)
class Question:
    """For what the topologies are ranked.

    Attributes:
        weight_bytes: tensor bytes of the checkpoint; None: by the shape.
        hardware: of one node; all nodes are of one kind.
        points: the loads, one or more.
        device: peaks of the GPU; None: unknown, so there is no bound.
        targets: the most milliseconds of a latency, by its name in :data:`TARGETS`.
    """

    architecture: Architecture
    weight_bytes: int | None
    hardware: Hardware
    check: EnvironmentCheck
    points: tuple[LoadPoint, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    device: Device | None = None
    targets: Mapping[str, float] = field(default_factory=dict)

    @property
    def heaviest(self) -> LoadPoint:
        """The load with the most tokens in flight."""
        return max(self.points, key=lambda point: (point.concurrency or 0) * point.request_tokens)

    @property
    def no_bound(self) -> str | None:
        """Why there is no roofline bound, as a clause; None if there is one."""
        if self.device is None:
            return "the peaks of the GPU are unknown" if self.hardware.accelerator == "cuda" else "the peaks of a CPU are unknown"
        return unbounded(self.architecture)


@dataclass(frozen=True)
class Candidate:
    """A topology that holds the model, with its plan."""

    topology: AskedTopology
    demand: Demand = field(repr=False)
    question: Question = field(repr=False)

    @property
    def estimate(self) -> Estimate:
        """Memory of one rank, KV cache of one engine."""
        return self.demand.estimate

    @cached_property
    def load(self) -> Load:
        """The heaviest load; bound and latencies are computed for it."""
        return self.demand.bounded(self.question.heaviest)

    @cached_property
    def held(self) -> int:
        """Requests of the heaviest load whose tokens the KV caches of all engines hold, at most those in flight."""
        point = self.question.heaviest
        engines = self.demand.engines(point)
        return int(min(point.concurrency or 1, engines * math.floor(self.demand.cacheable(point))))

    @cached_property
    def holds_load(self) -> bool:
        """Whether no request of a load waits for memory."""
        return all(self.demand.share(point) <= self.demand.cacheable(point) for point in self.demand.closed)

    def same(self, other: object) -> bool:
        """Return whether ``other`` is this topology with the same numbers, for another question."""
        return (
            isinstance(other, Candidate)
            and (self.topology, self.estimate) == (other.topology, other.estimate)
            # Compare the inputs first: computing the numbers costs more.
            and (self.demand.server == other.demand.server or self.held == other.held)
            and (self.load == other.load or (self.bound, self.latencies) == (other.bound, other.latencies))
        )

    @cached_property
    def bound(self) -> Bound | None:
        """The roofline bound of the heaviest load."""
        if self.question.device is None or self.question.no_bound:
            return None
        part = self.demand.topology.asked(self.question.heaviest.ask)
        return bound(self.question.architecture, part, self.question.device, self.load)

    @cached_property
    def latencies(self) -> Latencies | None:
        """The least latencies of the heaviest load."""
        if self.question.device is None or self.question.no_bound:
            return None
        part = self.demand.topology.asked(self.question.heaviest.ask)
        return least_latencies(self.question.architecture, part, self.question.device, self.load)

    @cached_property
    def advice(self) -> dict[str, str]:
        """The advice about this topology, by code."""
        return {code: text for code, text in advise(self.demand).items() if code in ADVICE}

    @property
    def missed(self) -> dict[str, float]:
        """The targets that the bound alone exceeds: the least milliseconds by the latency's name."""
        least = self.latencies
        found = {name: float(getattr(least, name)) for name in self.question.targets} if least else {}
        return {name: ms for name, ms in found.items() if ms > self.question.targets[name]}

    @property
    def order(self) -> tuple[float, ...]:
        """The sort key: see :func:`rank`."""
        shape = self.topology
        return (
            not self.holds_load,
            0 if self.holds_load else -self.held,
            shape.pipeline_parallel > shape.nodes_of_a_replica,
            shape.world_size,
            shape.nodes_of_a_replica > 1,
            shape.nodes,
            -(self.bound.output_tokens_per_s if self.bound else 0.0),
            shape.pipeline_parallel,
            shape.replicas,
        )

    @property
    def obstacle(self) -> str | None:
        """Why this topology does not suffice, as a sentence; None if it does."""
        if missed := self.missed:
            limits = self.question.targets
            least = [f"{name} is at least {ms:.3g} by the roofline, and the target is {limits[name]:g}" for name, ms in missed.items()]
            return f"{'; '.join(least)}."
        if self.holds_load:
            return None
        point = self.question.heaviest
        return f"The KV cache holds {self.held} of {point.concurrency} requests of {point.request_tokens} tokens."


@dataclass(frozen=True)
class Refusal:
    """A legal topology that does not hold the model."""

    topology: AskedTopology
    obstacle: str
    estimate: Estimate

    def same(self, other: object) -> bool:
        """Return whether ``other`` is this topology, refused for the same reason."""
        return isinstance(other, Refusal) and (self.topology, self.obstacle) == (other.topology, other.obstacle)


@dataclass(frozen=True)
class Ranking:
    """The topologies on up to ``nodes`` nodes: all, then in their order, those that miss a target, and those without enough memory."""

    question: Question
    nodes: int
    judged: tuple[Candidate | Refusal, ...]
    candidates: tuple[Candidate, ...]
    missed: tuple[Candidate, ...]
    refused: tuple[Refusal, ...]

    @property
    def fits(self) -> bool:
        """Whether some topology holds the model and the load and may meet the targets."""
        return bool(self.candidates) and self.candidates[0].holds_load

    @property
    def enough(self) -> tuple[AskedTopology, ...]:
        """The topologies that hold the model and the load and may meet the targets."""
        return tuple(one.topology for one in self.candidates if one.holds_load)

    def unchanged(self, question: Question) -> bool:
        """Return whether another question has the same topologies with the same numbers; the first difference ends the comparison."""
        others = (one for nodes in range(1, self.nodes + 1) for one in _on(question, nodes))
        return all(one is not None and one.same(other) for one, other in zip_longest(self.judged, others))

    @property
    def not_fewer(self) -> tuple[AskedTopology, str] | None:
        """The best topology with fewer nodes than every topology that suffices, else with fewer GPUs, and why it does not suffice.

        Nothing suffices: the best of all. None: there is no smaller one.
        """
        ranked = [
            # In an order in which the best one of equal size comes first.
            *((one.topology, one.obstacle) for one in (*self.candidates, *self.missed)),
            *((one.topology, one.obstacle) for one in sorted(self.refused, key=lambda one: -(one.estimate.kv_cache_gib or 0.0))),
        ]
        short = [(topology, why) for topology, why in ranked if why]
        if enough := self.enough:
            fewer = [one for one in short if one[0].nodes < min(one.nodes for one in enough)]
            short = fewer or [one for one in short if one[0].world_size < min(one.world_size for one in enough)]
        return max(short, key=lambda one: (one[0].nodes, one[0].replicas == 1), default=None)


def rank(question: Question, nodes: int) -> Ranking:
    """Rank every topology on 1 to ``nodes`` nodes.

    The order: topologies whose KV cache holds all requests in flight come first (of the others those that hold most). Then come those
    without pipeline stages inside a node, the fewest GPUs, replicas that do not span nodes, the fewest nodes, the highest roofline bound.
    """
    return _ranking(question, nodes, [one for count in range(1, nodes + 1) for one in _on(question, count)])


def fewest_nodes(question: Question, most: int = MAX_NODES, *, load: bool = True) -> Ranking:
    """Return the ranking up to the fewest nodes that hold the model, and with ``load`` also the load and the targets.

    If ``most`` nodes do not suffice, return the ranking up to these.
    """
    judged: list[Candidate | Refusal] = []
    for nodes in range(1, most + 1):
        new = list(_on(question, nodes))
        judged += new
        if any(isinstance(one, Candidate) and (one.obstacle is None or not (load or one.missed)) for one in new):
            break
    return _ranking(question, nodes, judged)


def _on(question: Question, nodes: int) -> Iterator[Candidate | Refusal]:
    spread = bool(flag(question.options, EXPERT_PARALLEL))
    for topology in legal(question.architecture, question.hardware.devices, nodes, spread=spread):
        if judged := _judged(question, topology):
            yield judged


def _ranking(question: Question, nodes: int, judged: Sequence[Candidate | Refusal]) -> Ranking:
    candidates = sorted((one for one in judged if isinstance(one, Candidate)), key=lambda one: one.order)
    found, missed = ([one for one in candidates if bool(one.missed) is wrong] for wrong in (False, True))
    return Ranking(question, nodes, tuple(judged), tuple(found), tuple(missed), tuple(one for one in judged if isinstance(one, Refusal)))


def by_division(question: Question) -> int | None:
    """Return the number of nodes by a division: the bytes of the weights over the memory of a node's GPUs; None on CPU."""
    gpus = question.hardware.gpus if question.hardware.accelerator == "cuda" else ()
    if not gpus:
        return None
    return max(1, math.ceil(whole_weights(question) / sum(gpu.memory_mib * 2**20 for gpu in gpus)))


def whole_weights(question: Question) -> float:
    """Return the bytes of all weights as the server holds them, once."""
    architecture, alone = question.architecture, AskedTopology().record()
    server = Server.read(alone, (architecture.layers,), question.weight_bytes, question.options, question.variables, question.hardware)
    return memory.rank_weight_bytes(architecture, server)


def _judged(question: Question, topology: AskedTopology) -> Candidate | Refusal | None:
    """Return the candidate, or why it has too little memory; None for a topology that vLLM does not start there."""
    architecture, hardware, record = question.architecture, question.hardware, topology.record()
    options, no_size = cuda_graphs.resolve(question.options, record, question.points, hardware)
    if no_size or legality.not_on_cpu(architecture, record, options, question.variables, hardware.accelerator):
        return None
    stages = legality.stages(architecture, record, {})
    server = Server.read(record, stages, question.weight_bytes, options, question.variables, hardware)
    longest = max(point.request_tokens for point in question.points)
    estimate = _estimate(architecture, server, str(options.get("max-model-len")), longest)
    try:
        memory.require(estimate, server)
    except PlanRefused as error:
        return Refusal(topology, error.what, estimate)
    demand = Demand(architecture, server, options, question.variables, question.points, estimate, hardware, question.check)
    return Candidate(topology, demand, question)


@cache
def _estimate(architecture: Architecture, server: Server, max_model_len: str, shortest: int) -> Estimate:
    """Return the estimate of a server; most options do not change it, so questions that differ in one option share it."""
    return memory.of_options(architecture, server, {"max-model-len": max_model_len}, shortest)
