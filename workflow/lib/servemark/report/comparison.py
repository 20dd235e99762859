"""Compare load points: deployments with equal resources, a router with one of its replicas, each deployment with its roofline."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, NamedTuple

from servemark.errors import ServemarkError
from servemark.planning.options import own_tokens
from servemark.planning.roofline import DEVICES, Bound, Device, bound
from servemark.records import Plan
from servemark.report import formatting, views
from servemark.report.columns import MEDIANS
from servemark.report.gather import RunRecords
from servemark.weights.architecture import Architecture

OUTPUT, TOTAL = "output_tokens_per_s", "total_tokens_per_s"
_LATENCIES = ("TTFT p50", "TTFT p99", "TPOT p50", "E2EL p50")
Point = Mapping[str, Any]
"""The medians of a load point: a row of ``views.medians``."""
Spread = tuple[float, float, float]
TOO_GOOD = 0.85
"""Share of the roofline above which a result is doubtful. Memory copies alone reach a little more: ``memory_copy_share`` in
planning/advice.yaml."""


def spread(point: Point, column: str, times: float = 1) -> Spread | None:
    """Return (median, minimum, maximum) of a column over accepted repetitions, multiplied by ``times``; None if it is empty."""
    if point[f"{column}_median"] is None:
        return None
    median, minimum, maximum = (times * point[f"{column}_{statistic}"] for statistic in ("median", "min", "max"))
    return median, minimum, maximum


@dataclass(frozen=True)
class Row:
    """A deployment at a load. ``output`` and ``total`` are tokens per second and device.

    Attributes:
        state: beginning of the names of the compared results (``views.state``), the same for all deployments at a load.
        best: the deployment with the highest median output at this load, or None.
        ratio: median output over that of ``best``.
        apart: whether the ranges of both do not overlap. None for the best itself and if one of them has a single repetition.
    """

    point: Point
    state: str
    best: Point | None
    output: Spread | None
    total: Spread | None
    ratio: float | None
    apart: bool | None


@dataclass(frozen=True)
class Group:
    """Deployments of a workload with equal resources (GPUs, or ranks on a CPU). ``rows`` are sorted by load, then deployment."""

    workload: str
    devices: int
    rows: tuple[Row, ...]


def unit(data: RunRecords, count: int) -> str:
    """Return the number with its unit: ``4 GPUs``, or ``4 ranks`` on a CPU."""
    return formatting.plural(count, "rank" if data.machine.accelerator == "cpu" else "GPU")


def groups(points: Sequence[Point], data: RunRecords) -> list[Group]:
    """Return a group for each workload and number of devices that two or more planned deployments share."""
    found: dict[tuple[str, int], list[Point]] = {}
    for point in points:
        if plan := data.plans.get(point["deployment"]):
            found.setdefault((point["workload"], plan.asked_by(point["workload"]).world_size), []).append(point)
    return [
        Group(workload, devices, tuple(_rows(some, devices)))
        for (workload, devices), some in sorted(found.items())
        if len({point["deployment"] for point in some}) > 1
    ]


def _rows(points: Sequence[Point], devices: int) -> Iterator[Row]:
    loads: dict[tuple[Any, Any], list[Point]] = {}
    for point in points:
        loads.setdefault((point["concurrency"], point["request_rate_per_s"]), []).append(point)
    for load in sorted(loads, key=lambda load: formatting.load_order(*load)):
        state = views.state(loads[load])
        name = state + OUTPUT
        accepted = [point for point in loads[load] if point[f"{name}_median"] is not None]
        best = max(accepted, key=itemgetter(f"{name}_median"), default=None)
        for point in loads[load]:
            output, apart = spread(point, name, 1 / devices), None
            ratio = point[f"{name}_median"] / best[f"{name}_median"] if output and best and best[f"{name}_median"] else None
            if output and best and best is not point and min(one["repetitions_accepted"] for one in (point, best)) > 1:
                apart = bool(point[f"{name}_max"] < best[f"{name}_min"])
            yield Row(point, state, best, output, spread(point, state + TOTAL, 1 / devices), ratio, apart)


class Line(NamedTuple):
    """A result at both loads in ``unit``. ``difference`` is router minus replica; ``percent`` is relative to the replica."""

    label: str
    unit: str
    router: Spread | None
    replica: Spread | None
    difference: float | None
    percent: float | None


class Pair(NamedTuple):
    """A load through the router and the matching load of one replica. ``state``: see ``Row``.

    Both have the same lengths and client options. The router's concurrency is the replica's times the number of replicas. ``verdict`` is
    SUSPECT if either load is. ``busiest`` is the CPU time of the busiest client process at both loads, in per cent of a core.
    """

    router: Point
    replica: Point
    verdict: str
    state: str
    lines: list[Line]
    busiest: tuple[float | None, float | None]


def pairs(points: Sequence[Point], data: RunRecords) -> list[Pair]:
    """Return all pairs of accepted loads, in the order of the loads through the router.

    A load by request rate has no pair, because Poisson arrivals at one replica differ from the arrivals that a router passes on.
    """
    cpu = {(row["deployment"], row["workload"], row["load"]): row["cpu"] for row in views.clients(data)}
    found = []
    for name, plan in sorted(data.plans.items()):
        loads = [
            (point, load)
            for point in points
            if point["deployment"] == name and point["repetitions_accepted"] and (load := plan.load_of(point["workload"]))
            if point["concurrency"] is not None and point["request_rate_per_s"] is None
        ]
        for (router, through), (replica, direct) in itertools.product(loads, loads):
            # Latencies of different requests cannot be compared.
            same = (through.prompts, through.client_options) == (direct.prompts, direct.client_options)
            matching = router["concurrency"] == plan.topology.replicas * replica["concurrency"]
            if (through.ask, direct.ask) == ("endpoint", "replica") and same and matching:
                verdict = "SUSPECT" if "SUSPECT" in (router["verdict"], replica["verdict"]) else "VALID"
                one, other = (cpu.get((name, point["workload"], point["load"])) for point in (router, replica))
                state = views.state((router, replica))
                lines = _lines(router, replica, state, plan.topology.replicas)
                found.append(Pair(router, replica, verdict, state, lines, (one, other)))
    return found


def _lines(router: Point, replica: Point, state: str, replicas: int) -> list[Line]:
    """Return the latencies ``_LATENCIES``, then the output of the router and of ``replicas`` times one replica."""
    compared = [(column.label, column.unit, column.name, 1) for column in MEDIANS if column.label in _LATENCIES]
    compared.append((f"Output tokens/s (one replica \N{MULTIPLICATION SIGN} {replicas})", "", OUTPUT, replicas))
    lines = []
    for label, unit, name, times in compared:
        through, past = spread(router, state + name), spread(replica, state + name, times)
        difference = through[0] - past[0] if through and past else None
        percent = 100 * difference / past[0] if difference is not None and past and past[0] else None
        lines.append(Line(label, unit, through, past, difference, percent))
    return lines


@dataclass(frozen=True)
class Share:
    """A load point (of ``views.medians``) and its roofline, in output tokens/s of the whole deployment."""

    point: Mapping[str, Any]
    bound: Bound

    @property
    def part(self) -> float:
        """Return the measured throughput over the roofline."""
        return float(self.point["output_tokens_per_s_median"] / self.bound.output_tokens_per_s)

    @property
    def doubtful(self) -> bool:
        """Return whether the share is above ``TOO_GOOD``."""
        return self.part > TOO_GOOD


def shares(points: Sequence[Mapping[str, Any]], data: RunRecords) -> tuple[list[Share], list[str]]:
    """Return the share of every accepted load point (of ``views.medians``), and one sentence for each reason why others have none."""
    device = _device(data)
    if isinstance(device, str):
        return [], [device]
    found: list[Share] = []
    missing: dict[str, None] = {}
    for point in points:
        if point["output_tokens_per_s_median"] is not None:
            share = _bound(data, data.plans.get(point["deployment"]), point, device)
            if isinstance(share, str):
                missing[share] = None
            else:
                found.append(Share(point, share))
    return found, list(missing)


def _device(data: RunRecords) -> Device | str:
    """Return the data sheet's peaks of the GPUs, or why they are unknown."""
    if data.machine.accelerator == "cpu":
        return "The deployments ran on a CPU. servemark does not probe its memory bandwidth and peak arithmetic."
    names = sorted({gpu.name for gpu in data.machine.gpus})
    if len(names) != 1:
        return f"The GPUs are of different kinds, or none was found: {', '.join(names) or 'none'}."
    return DEVICES.get(names[0]) or f"servemark has no data-sheet peaks for {names[0]}."


def _bound(data: RunRecords, plan: Plan | None, point: Point, device: Device) -> Bound | str:
    """Return the roofline of a load point, or why it is unknown."""
    if point["concurrency"] is None or point["request_rate_per_s"] is not None:
        return f"Workload {point['workload']}: servemark computes no roofline for a load by request rate."
    if plan is None or plan.model not in data.manifests:
        return f"Deployment {point['deployment']}: the plan or the model's manifest is missing."
    load = plan.load_of(point["workload"])
    if load is None:
        return f"Deployment {point['deployment']}: the plan does not contain workload {point['workload']}."
    try:
        return bound(
            Architecture.from_config(data.manifests[plan.model].config),
            plan.asked_by(point["workload"]),
            device,
            concurrency=point["concurrency"],
            input_tokens=own_tokens(load, plan.options),
            output_tokens=load.prompts.output_tokens,
            kv_element_bytes=1 if str(plan.options.get("kv-cache-dtype", "")).startswith("fp8") else None,
        )
    except ServemarkError as error:
        return f"Deployment {point['deployment']}: {error.what}"
