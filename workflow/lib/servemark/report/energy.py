"""Rows about GPU energy, its cost, and the load of other processes, for load points with telemetry."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from servemark.config.prices import Prices
from servemark.measurement import telemetry
from servemark.records import Measurement
from servemark.records.restarts import configured
from servemark.report.columns import LOAD
from servemark.report.gather import RunRecords
from servemark.report.measured import topology


def prices(data: RunRecords) -> Prices | None:
    """Return the prices in the run's configuration."""
    found = data.config.get("prices")
    return Prices.model_validate(found) if found else None


def rows(points: Iterable[Mapping[str, Any]], data: RunRecords) -> list[dict[str, Any]]:
    """Return the load points (``views.medians``) with telemetry of GPUs or CPUs, or with a cost.

    Each row also has ``gpus`` (their largest number), ``idle`` (those without work in any repetition), ``cores``, ``faults`` (why a node
    was not sampled) and ``cost`` (median cost of a million output tokens, or None).
    """
    by_load: dict[tuple[Any, ...], list[Measurement]] = {}
    for item in data.measurements:
        if item.verdict != "INVALID":
            load = item.load
            by_load.setdefault((configured(item.deployment), load.workload, load.concurrency, load.request_rate), []).append(item)
    found, asked = [], prices(data)
    for point in points:
        items = by_load.get(tuple(point[name] for name in LOAD), [])
        measured = [item.telemetry for item in items if item.telemetry]
        costs = _costs(items, asked, on_gpus=data.machine.accelerator == "cuda")
        row = {
            **point,
            "gpus": max((len(one.gpus) for one in measured), default=0),
            "idle": sorted({name for one in measured for name in telemetry.idle(one)}),
            "cores": max((node.cores or 0 for one in measured for node in one.nodes), default=0),
            "faults": sorted({f"{node.node}: {node.fault}" for one in measured for node in one.nodes if node.fault}),
            "cost": statistics.median(costs) if costs else None,
        }
        if row["gpus"] or row["cores"] or row["faults"] or costs:
            found.append(row)
    return found


def _costs(items: Sequence[Measurement], asked: Prices | None, *, on_gpus: bool) -> list[float]:
    """Return the known costs of a million output tokens, one for each measurement."""
    return [cost for item in items if asked and on_gpus and (cost := cost_per_million(item, asked)) is not None]


def cost_per_million(item: Measurement, asked: Prices) -> float | None:
    """Return the cost of a million output tokens: (GPUs x hours x ``gpu_hour`` + kWh x ``kwh``) / output tokens x 1e6.

    The GPUs are those with telemetry, otherwise one for each rank. None if something is not known that has a price.
    """
    shape = topology(item)
    gpus = len(item.telemetry.gpus) if item.telemetry and item.telemetry.gpus else shape.world_size if shape else None
    if gpus is None or item.duration_s is None or not item.total_output_tokens:
        return None
    cost = gpus * item.duration_s / 3600 * asked.gpu_hour
    if asked.kwh is not None:
        energy = item.telemetry.energy_j if item.telemetry else None
        if energy is None:
            return None
        cost += energy / telemetry.JOULES_PER_KWH * asked.kwh
    return cost / item.total_output_tokens * 1e6
