"""Read what the columns of a table show from a measurement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from servemark.measurement import telemetry
from servemark.measurement.slo import Attainment
from servemark.records import LoadPoint, Measurement, Topology
from servemark.records.restarts import configured
from servemark.report import formatting


@dataclass(frozen=True)
class Row:
    """A measurement, the topology in its ledger key (or None), its Slurm job, and how it meets its latency targets."""

    item: Measurement
    shape: Topology | None
    job_id: str | None = None
    slo: Attainment | None = None

    @property
    def load(self) -> LoadPoint:
        """Return the measurement's load point."""
        return self.item.load


def ordered(measurements: Sequence[Measurement]) -> list[Measurement]:
    """Return the measurements in the row order of all tables."""
    return sorted(measurements, key=_order)


def _order(item: Measurement) -> tuple[Any, ...]:
    at = item.load
    return (configured(item.deployment), at.workload, *formatting.load_order(at.concurrency, at.request_rate), at.repetition, at.name)


def topology(item: Measurement) -> Topology | None:
    """Return the topology in a measurement's ledger key, or None.

    Raises:
        ValueError, TypeError, AttributeError: the ledger key contains something else.
    """
    parts = item.key_parts.get("deployment", {}).get("topology")
    return Topology.model_validate(parts) if parts else None


def replicas(item: Measurement) -> dict[str, int]:
    """Return the requests of each replica, r2 before r10; empty for one replica."""
    counts = item.replica_requests if len(item.replica_requests) > 1 else {}
    return dict(sorted(counts.items(), key=lambda pair: (len(pair[0]), pair[0])))


def preemptions(item: Measurement) -> int | None:
    """Return how often the servers preempted a request; None if they did not report it."""
    return sum(engine.preemptions for engine in item.counters.engines) if item.counters else None


def energy(row: Row, factor: float) -> float | None:
    """Return the GPU energy of an output token in joules, multiplied by ``factor``; None if it is not known."""
    joules = telemetry.energy_per_token(row.item)
    return None if joules is None else factor * joules


def idle(row: Row) -> str | None:
    """Return the allocated GPUs that did no work, as ``NODE:POSITION``, separated by spaces; None without one."""
    return " ".join(telemetry.idle(row.item.telemetry)) or None if row.item.telemetry else None
