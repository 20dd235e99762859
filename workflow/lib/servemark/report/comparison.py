"""Deployments with equal resources side by side: as many GPUs (on a CPU: ranks), the same workload, the same load."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from servemark.report import formatting
from servemark.report.data import RunRecords

OUTPUT, TOTAL = "output_tokens_per_s", "total_tokens_per_s"
Point = Mapping[str, Any]
Spread = tuple[float, float, float]


def spread(point: Point, figure: str, times: float = 1) -> Spread | None:
    """Return (median, least, most) of a figure over accepted repetitions, multiplied by ``times``; None where no request has it."""
    if point[f"{figure}_median"] is None:
        return None
    median, least, most = (times * point[f"{figure}_{statistic}"] for statistic in ("median", "min", "max"))
    return median, least, most


@dataclass(frozen=True)
class Row:
    """A deployment at a load; ``best`` is the deployment with the highest median output there, None where nothing was accepted."""

    point: Point
    best: Point | None
    devices: int
    topology: str

    @property
    def output(self) -> Spread | None:
        """Return output tokens per second and device."""
        return spread(self.point, OUTPUT, 1 / self.devices)

    @property
    def total(self) -> Spread | None:
        """Return tokens per second and device, prompts included."""
        return spread(self.point, TOTAL, 1 / self.devices)

    @property
    def ratio(self) -> float | None:
        """Return the median output over the best one."""
        own, highest = self.point[f"{OUTPUT}_median"], self.best and self.best[f"{OUTPUT}_median"]
        return own / highest if own is not None and highest else None

    @property
    def apart(self) -> bool | None:
        """Return whether the two ranges do not touch; None for the best itself, or where one of the two has a single repetition."""
        if self.best is None or self.best is self.point or self.output is None:
            return None
        if min(self.point["repetitions_accepted"], self.best["repetitions_accepted"]) < 2:
            return None
        return bool(self.point[f"{OUTPUT}_max"] < self.best[f"{OUTPUT}_min"])


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
    """Return every workload and number of devices that two or more planned deployments share.

    Args:
        points: the medians of every load point (``views.medians``), by deployment, workload and load.
    """
    found: dict[tuple[str, int], list[Point]] = {}
    for point in points:
        if plan := data.plans.get(point["deployment"]):
            found.setdefault((point["workload"], plan.asked_by(point["workload"]).world_size), []).append(point)
    return [
        Group(workload, devices, tuple(_rows(some, devices, data)))
        for (workload, devices), some in sorted(found.items())
        if len({point["deployment"] for point in some}) > 1
    ]


def alone(data: RunRecords, found: Sequence[Group]) -> list[tuple[str, int]]:
    """Return deployments that are in no group, with their number of devices."""
    grouped = {row.point["deployment"] for group in found for row in group.rows}
    return [(name, plan.topology.world_size) for name, plan in sorted(data.plans.items()) if name not in grouped]


def _rows(points: Sequence[Point], devices: int, data: RunRecords) -> Iterator[Row]:
    loads: dict[tuple[Any, Any], list[Point]] = {}
    for point in points:
        loads.setdefault((point["concurrency"], point["request_rate_per_s"]), []).append(point)
    for load in sorted(loads, key=lambda load: formatting.load_order(*load)):
        accepted = [point for point in loads[load] if point[f"{OUTPUT}_median"] is not None]
        best = max(accepted, key=lambda point: point[f"{OUTPUT}_median"], default=None)
        for point in loads[load]:
            yield Row(point, best, devices, formatting.topology(data.plans[point["deployment"]].topology))
