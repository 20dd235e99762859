"""Compare load points: deployments with equal resources, a router with one of its replicas, each deployment with its roofline."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, NamedTuple

from servemark.errors import ServemarkError
from servemark.measurement.intervals import LEAST, Interval
from servemark.planning import devices
from servemark.planning.devices import Device
from servemark.planning.options import own_tokens
from servemark.planning.roofline import Bound, Load, bound
from servemark.records import Plan
from servemark.report import comparable, formatting, views
from servemark.report.columns import MEDIANS
from servemark.report.gather import RunRecords
from servemark.weights.architecture import Architecture

OUTPUT, TOTAL = "output_tokens_per_s", "total_tokens_per_s"
_LATENCIES = ("TTFT p50", "TTFT p99", "TPOT p50", "E2EL p50")
Point = Mapping[str, Any]
"""The medians of a load point: a row of ``views.medians``."""
TOO_GOOD = 0.85
"""Share of the roofline above which a result is doubtful. Memory copies alone reach a little more: ``memory_copy_share`` in
planning/advice.yaml."""


class Spread(NamedTuple):
    """A result over accepted repetitions. ``low`` and ``high``: the ends of its 95 % interval, None if there is none."""

    median: float
    minimum: float
    maximum: float
    low: float | None
    high: float | None
    repetitions: int

    @property
    def interval(self) -> Interval:
        """The interval, with NaN for ends that there are not."""
        low, high = (math.nan if end is None else end for end in (self.low, self.high))
        return Interval(low, high, self.repetitions)


def spread(point: Point, column: str, times: float = 1) -> Spread | None:
    """Return a column of a load point, multiplied by ``times``; None if it is empty."""
    if point[f"{column}_median"] is None:
        return None
    median, minimum, maximum = (times * point[f"{column}_{statistic}"] for statistic in ("median", "min", "max"))
    low, high = (None if (end := point[f"{column}_{name}"]) is None else times * end for name in ("low", "high"))
    return Spread(median, minimum, maximum, low, high, point[f"{column}_repetitions"])


class Ratio(NamedTuple):
    """The 95 % interval of a ratio (None if there is none), and in words whether the two results differ."""

    low: float | None
    high: float | None
    words: str


def ratio(one: Spread, other: Spread) -> Ratio:
    """Return the interval of ``one`` over ``other``. They are called different only if it excludes 1."""
    found = one.interval.over(other.interval)
    if math.isnan(found.low):
        count = int(found.repetitions)
        why = formatting.plural(count, "repetition") if count < LEAST else "a result is not positive"
        return Ratio(None, None, f"cannot tell ({why})")
    return Ratio(float(found.low), float(found.high), "different" if found.excludes_1 else "no difference shown")


@dataclass(frozen=True)
class Row:
    """A deployment at a load. ``output`` and ``total`` are tokens per second and device.

    Attributes:
        state: beginning of the names of the compared results (``views.state``), the same for all deployments at a load.
        best: the deployment with the highest median output at this load, or None.
        ratio: median output over that of ``best``.
        between: the interval of this ratio. None for the best itself and if there is no other deployment.
    """

    point: Point
    state: str
    best: Point | None
    output: Spread | None
    total: Spread | None
    ratio: float | None
    between: Ratio | None


@dataclass(frozen=True)
class Group:
    """Comparable deployments of a workload with equal resources (GPUs, or ranks on a CPU). ``rows``: by load, then deployment.

    ``differs``: model and settings in which they differ from deployments in another group with the same resources; "" if there are none.
    """

    workload: str
    devices: int
    rows: tuple[Row, ...]
    differs: str = ""


def unit(data: RunRecords, count: int) -> str:
    """Return the number with its unit: ``4 GPUs``, or ``4 ranks`` on a CPU."""
    return formatting.plural(count, "rank" if data.machine.accelerator == "cpu" else "GPU")


def groups(points: Sequence[Point], data: RunRecords) -> list[Group]:
    """Return the planned deployments by workload, number of devices, model and precision.

    A deployment is left out if no other one has the same number of devices.
    """
    found: dict[tuple[str, int], list[Point]] = {}
    for point in points:
        if plan := data.plans.get(point["deployment"]):
            found.setdefault((point["workload"], plan.asked_by(point["workload"]).world_size), []).append(point)
    return [group for (workload, devices), some in sorted(found.items()) for group in _groups(workload, devices, some, data)]


def _groups(workload: str, devices: int, points: Sequence[Point], data: RunRecords) -> Iterator[Group]:
    names = list(dict.fromkeys(point["deployment"] for point in points))
    if len(names) < 2:
        return
    identities, differences = comparable.identities(data), comparable.differences(data, names)
    for identity, differs in differences.items():
        mine = [point for point in points if identities[point["deployment"]] == identity]
        yield Group(workload, devices, tuple(_rows(mine, devices)), differs)


def _rows(points: Sequence[Point], devices: int) -> Iterator[Row]:
    alone = len({point["deployment"] for point in points}) < 2
    loads: dict[tuple[Any, Any], list[Point]] = {}
    for point in points:
        loads.setdefault((point["concurrency"], point["request_rate_per_s"]), []).append(point)
    for load in sorted(loads, key=lambda load: formatting.load_order(*load)):
        state = views.state(loads[load])
        name = state + OUTPUT
        accepted = [point for point in loads[load] if point[f"{name}_median"] is not None]
        best = None if alone else max(accepted, key=itemgetter(f"{name}_median"), default=None)
        top = best and spread(best, name, 1 / devices)
        for point in loads[load]:
            output = spread(point, name, 1 / devices)
            share = output.median / top.median if output and top and top.median else None
            between = ratio(output, top) if output and top and best is not point else None
            yield Row(point, state, best, output, spread(point, state + TOTAL, 1 / devices), share, between)


class Line(NamedTuple):
    """A result at both loads in ``unit``. ``difference`` is router minus replica; ``percent`` is relative to the replica.

    ``between`` is the interval of ``percent``.
    """

    label: str
    unit: str
    router: Spread | None
    replica: Spread | None
    difference: float | None
    percent: float | None
    between: Ratio | None


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
        if not (through and past):
            lines.append(Line(label, unit, through, past, None, None, None))
            continue
        difference, found = through.median - past.median, ratio(through, past)
        low, high = (None if end is None else 100 * (end - 1) for end in (found.low, found.high))
        percent = 100 * difference / past.median if past.median else None
        lines.append(Line(label, unit, through, past, difference, percent, Ratio(low, high, found.words)))
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
    return devices.find(data.machine.gpus[0]) or f"servemark has no data-sheet peaks for {names[0]}."


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
            Load(
                point["concurrency"],
                own_tokens(load, plan.options),
                load.prompts.output_tokens,
                kv_element_bytes=1 if str(plan.options.get("kv-cache-dtype", "")).startswith("fp8") else None,
            ),
        )
    except ServemarkError as error:
        return f"Deployment {point['deployment']}: {error.what}"
