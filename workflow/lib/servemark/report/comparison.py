"""Deployments with equal resources side by side: as many GPUs (on a CPU: ranks), the same workload, the same load."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from servemark.report import formatting
from servemark.report.data import PageData

OUTPUT, TOTAL = "output_tokens_per_s", "total_tokens_per_s"


@dataclass(frozen=True)
class Row:
    """A deployment at a load. Figures are tokens per second and device, as (median, least, most) of accepted repetitions.

    ``ratio`` is its median output over that of ``best``, the deployment with the highest one at this load; None where there is no
    accepted repetition. ``apart`` tells whether the two ranges do not touch; None for the best itself, or where one of the two
    has a single repetition.
    """

    deployment: str
    load: str
    topology: str
    verdict: str
    accepted: int
    asked: int
    output: tuple[float, float, float] | None
    total: tuple[float, float, float] | None
    best: str | None
    ratio: float | None
    apart: bool | None


@dataclass(frozen=True)
class Group:
    """Deployments of a workload that have as many ``devices``; ``rows`` by load, then by deployment."""

    workload: str
    devices: int
    deployments: tuple[str, ...]
    rows: tuple[Row, ...]


def device(data: PageData) -> str:
    """Return what is counted as a resource: GPUs, or ranks on a CPU, where nothing else can be counted."""
    return "rank" if data.hardware.accelerator == "cpu" else "GPU"


def unit(data: PageData, count: int) -> str:
    """Return ``4 GPUs``."""
    return formatting.plural(count, device(data))


def groups(points: Sequence[Mapping[str, Any]], data: PageData) -> list[Group]:
    """Return every workload and number of devices that two or more planned deployments share.

    Args:
        points: the medians of every load point (``views.medians``).
    """
    found = []
    for workload in sorted({point["workload"] for point in points}):
        mine = [point for point in points if point["workload"] == workload and point["deployment"] in data.plans]
        by_devices: dict[int, dict[str, None]] = {}
        for point in mine:
            size = data.plans[point["deployment"]].asked_by(workload).world_size
            by_devices.setdefault(size, {})[point["deployment"]] = None
        for devices, names in sorted(by_devices.items()):
            if len(names) > 1:
                some = [point for point in mine if point["deployment"] in names]
                found.append(Group(workload, devices, tuple(names), tuple(_rows(some, devices, data))))
    return found


def alone(data: PageData, found: Sequence[Group]) -> list[tuple[str, int]]:
    """Return deployments that are in no group, with their number of devices."""
    grouped = {name for group in found for name in group.deployments}
    return [(name, plan.topology.world_size) for name, plan in sorted(data.plans.items()) if name not in grouped]


def _rows(points: Sequence[Mapping[str, Any]], devices: int, data: PageData) -> Iterator[Row]:
    # `points` come by deployment, and by load within each.
    loads: dict[tuple[Any, Any], list[Mapping[str, Any]]] = {}
    for point in points:
        loads.setdefault((point["concurrency"], point["request_rate_per_s"]), []).append(point)
    heavier = sorted(loads, key=lambda load: (load[0] is None, load[0] or 0, load[1] is not None, load[1] or 0.0))
    for load in heavier:
        accepted = [point for point in loads[load] if point[f"{OUTPUT}_median"] is not None]
        best = max(accepted, key=lambda point: point[f"{OUTPUT}_median"], default=None)
        for point in loads[load]:
            yield _row(point, best, devices, data)


def _row(point: Mapping[str, Any], best: Mapping[str, Any] | None, devices: int, data: PageData) -> Row:
    own, highest = point[f"{OUTPUT}_median"], best and best[f"{OUTPUT}_median"]
    name = point["deployment"]
    return Row(
        deployment=name,
        load=point["load"],
        topology=formatting.topology(data.plans[name].topology),
        verdict=point["verdict"],
        accepted=point["repetitions_accepted"],
        asked=point["repetitions_asked"],
        output=_per_device(point, OUTPUT, devices),
        total=_per_device(point, TOTAL, devices),
        best=best["deployment"] if best else None,
        ratio=own / highest if own is not None and highest else None,
        apart=_apart(point, best),
    )


def _per_device(point: Mapping[str, Any], figure: str, devices: int) -> tuple[float, float, float] | None:
    if point[f"{figure}_median"] is None:
        return None
    median, least, most = (point[f"{figure}_{statistic}"] / devices for statistic in ("median", "min", "max"))
    return median, least, most


def _apart(point: Mapping[str, Any], best: Mapping[str, Any] | None) -> bool | None:
    if best is None or best is point or point[f"{OUTPUT}_median"] is None:
        return None
    if min(point["repetitions_accepted"], best["repetitions_accepted"]) < 2:
        return None
    return bool(point[f"{OUTPUT}_max"] < best[f"{OUTPUT}_min"])
