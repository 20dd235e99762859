"""Deployments with equal resources side by side: as many GPUs (on a CPU: ranks), the same workload, the same load."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from servemark.report import formatting
from servemark.report.data import RunRecords

OUTPUT, TOTAL = "output_tokens_per_s", "total_tokens_per_s"
Point = Mapping[str, Any]
"""The medians of a load point: a row of ``views.medians``."""
Spread = tuple[float, float, float]


def spread(point: Point, figure: str, times: float = 1) -> Spread | None:
    """Return (median, least, most) of a figure over accepted repetitions, multiplied by ``times``; None where no request has it."""
    if point[f"{figure}_median"] is None:
        return None
    median, least, most = (times * point[f"{figure}_{statistic}"] for statistic in ("median", "min", "max"))
    return median, least, most


@dataclass(frozen=True)
class Row:
    """A deployment at a load. ``output`` and ``total`` are tokens per second and device.

    ``best`` is the deployment with the highest median output there, None where nothing was accepted, and ``ratio`` is to its median.
    ``apart`` tells whether the two ranges do not touch; None for the best itself, or where one of the two has a single repetition.
    """

    point: Point
    best: Point | None
    output: Spread | None
    total: Spread | None
    ratio: float | None
    apart: bool | None


@dataclass(frozen=True)
class Group:
    """Deployments of a workload that have as many ``devices``; ``rows`` by load, then by deployment."""

    workload: str
    devices: int
    rows: tuple[Row, ...]


def unit(data: RunRecords, count: int) -> str:
    """Return ``4 GPUs``, or ranks on a CPU, where nothing else can be counted."""
    return formatting.plural(count, "rank" if data.machine.accelerator == "cpu" else "GPU")


def groups(points: Sequence[Point], data: RunRecords) -> list[Group]:
    """Return every workload and number of devices that two or more planned deployments share."""
    found: dict[tuple[str, int], list[Point]] = {}
    for point in points:
        if plan := data.plans.get(point["deployment"]):
            found.setdefault((point["workload"], plan.asked_by(point["workload"]).world_size), []).append(point)
    return [
        Group(workload, devices, tuple(_rows(some, devices)))
        for (workload, devices), some in sorted(found.items())
        if len({point["deployment"] for point in some}) > 1
    ]


def alone(data: RunRecords, found: Sequence[Group]) -> list[tuple[str, int]]:
    """Return deployments that are in no group, with their number of devices."""
    grouped = {row.point["deployment"] for group in found for row in group.rows}
    return [(name, plan.topology.world_size) for name, plan in sorted(data.plans.items()) if name not in grouped]


def _rows(points: Sequence[Point], devices: int) -> Iterator[Row]:
    loads: dict[tuple[Any, Any], list[Point]] = {}
    for point in points:
        loads.setdefault((point["concurrency"], point["request_rate_per_s"]), []).append(point)
    for load in sorted(loads, key=lambda load: formatting.load_order(*load)):
        accepted = [point for point in loads[load] if point[f"{OUTPUT}_median"] is not None]
        best = max(accepted, key=lambda point: point[f"{OUTPUT}_median"], default=None)
        for point in loads[load]:
            output, apart = spread(point, OUTPUT, 1 / devices), None
            ratio = point[f"{OUTPUT}_median"] / best[f"{OUTPUT}_median"] if output and best and best[f"{OUTPUT}_median"] else None
            if output and best and best is not point and min(one["repetitions_accepted"] for one in (point, best)) > 1:
                apart = bool(point[f"{OUTPUT}_max"] < best[f"{OUTPUT}_min"])
            yield Row(point, best, output, spread(point, TOTAL, 1 / devices), ratio, apart)
