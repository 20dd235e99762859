"""Load points side by side: deployments with equal resources, and the same servers through the router and past it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from servemark.report import formatting, views
from servemark.report.columns import TERMINAL
from servemark.report.gather import RunRecords

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
    """Deployments of a workload with equal resources (GPUs, on a CPU ranks); ``rows`` by load, then by deployment."""

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


class Line(NamedTuple):
    """A figure of both loads in ``unit``; ``percent`` is their ``difference`` over the replica's median. None where one is missing."""

    figure: str
    unit: str
    router: Spread | None
    replica: Spread | None
    difference: float | None
    percent: float | None


class Pair(NamedTuple):
    """A load through the router and one of a replica that belong together; ``verdict`` is SUSPECT where either one's is.

    Lengths and client options are the same, and the router's concurrency is the replica's times the number of replicas.
    ``busiest`` is the CPU time of the client's busiest process in any accepted repetition of router and replica, per cent of a core.
    """

    router: Point
    replica: Point
    verdict: str
    lines: list[Line]
    busiest: tuple[float | None, float | None]


def pairs(points: Sequence[Point], data: RunRecords) -> list[Pair]:
    """Return every pair of accepted loads that belong together, in the order of the loads through the router.

    Loads by request rate have no pair: Poisson arrivals at one replica are not a share of what the router hands on.
    """
    cpu = {(row["deployment"], row["workload"], row["load"]): row["cpu"] for row in views.clients(data)}
    found = []
    for name, plan in sorted(data.plans.items()):
        planned = {load.workload: load for load in plan.loads}
        accepted = [
            (point, planned[point["workload"]])
            for point in points
            if point["deployment"] == name and point["workload"] in planned and point["repetitions_accepted"]
            if point["concurrency"] is not None and point["request_rate_per_s"] is None
        ]
        for router, through in accepted:
            for replica, past in accepted:
                if (through.ask, past.ask) != ("endpoint", "replica"):
                    continue
                # Else their latencies could not be compared.
                same = (through.prompts, through.client_options) == (past.prompts, past.client_options)
                if same and router["concurrency"] == plan.topology.replicas * replica["concurrency"]:
                    verdict = "SUSPECT" if "SUSPECT" in (router["verdict"], replica["verdict"]) else "VALID"
                    one, other = (cpu.get((name, point["workload"], point["load"])) for point in (router, replica))
                    found.append(Pair(router, replica, verdict, _lines(router, replica, plan.topology.replicas), (one, other)))
    return found


def _lines(router: Point, replica: Point, replicas: int) -> list[Line]:
    """Return the latencies of the terminal's table, then output of the router and of as many replicas."""
    figures = [(column.label, column.unit, column.name, 1) for column in TERMINAL if column.name != OUTPUT]
    figures.append((f"Output tokens/s (one replica \N{MULTIPLICATION SIGN} {replicas})", "", OUTPUT, replicas))
    lines = []
    for label, unit, name, times in figures:
        through, past = spread(router, name), spread(replica, name, times)
        difference = through[0] - past[0] if through and past else None
        percent = 100 * difference / past[0] if difference is not None and past and past[0] else None
        lines.append(Line(label, unit, through, past, difference, percent))
    return lines
