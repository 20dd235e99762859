"""What the router adds: the same servers asked through the one address, and one of them past it with its share of the load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from servemark.records import LoadPoint
from servemark.report import views
from servemark.report.columns import TERMINAL
from servemark.report.data import PageData

OUTPUT = "output_tokens_per_s"

Spread = tuple[float, float, float]


@dataclass(frozen=True)
class Side:
    """One of a pair's two loads.

    ``busiest`` is the CPU time of the client's busiest process in any accepted repetition, per cent of a core; None where it is
    not known.
    """

    workload: str
    load: str
    verdict: str
    accepted: int
    busiest: float | None


@dataclass(frozen=True)
class Line:
    """A figure of both loads in ``unit``, as (median, least, most) of accepted repetitions; None where no request has it."""

    figure: str
    unit: str
    router: Spread | None
    replica: Spread | None

    @property
    def difference(self) -> float | None:
        """The median through the router less that of the replica; None where one of them lacks."""
        return None if self.router is None or self.replica is None else self.router[0] - self.replica[0]

    @property
    def percent(self) -> float | None:
        """The difference over the replica's median, per cent; None where that is 0 or lacks."""
        if self.difference is None or self.replica is None or self.replica[0] == 0:
            return None
        return 100 * self.difference / self.replica[0]


@dataclass(frozen=True)
class Pair:
    """A load through the router and one of a replica that belong together.

    Lengths and client options are the same, and the router's concurrency is the replica's times the number of replicas.
    """

    deployment: str
    router: Side
    replica: Side
    lines: tuple[Line, ...]

    @property
    def verdict(self) -> str:
        """SUSPECT where either side is."""
        return "SUSPECT" if "SUSPECT" in (self.router.verdict, self.replica.verdict) else "VALID"


def pairs(points: Sequence[Mapping[str, Any]], data: PageData) -> list[Pair]:
    """Return every pair of accepted loads that belong together, in the order of the loads through the router.

    Loads by request rate have no pair: Poisson arrivals at one replica are not a share of what the router hands on.

    Args:
        points: the medians of every load point (``views.medians``).
    """
    busiest = {(row["deployment"], row["workload"], row["load"]): row["cpu"] for row in views.clients(data)}

    def side(point: Mapping[str, Any]) -> Side:
        place = point["deployment"], point["workload"], point["load"]
        return Side(*place[1:], point["verdict"], point["repetitions_accepted"], busiest.get(place))

    found = []
    for name, plan in sorted(data.plans.items()):
        planned = {load.workload: load for load in plan.loads}
        accepted = [
            point
            for point in points
            if point["deployment"] == name
            and point["workload"] in planned
            and point["repetitions_accepted"]
            and point["concurrency"] is not None
            and point["request_rate_per_s"] is None
        ]
        through = [point for point in accepted if planned[point["workload"]].ask == "endpoint"]
        past = [point for point in accepted if planned[point["workload"]].ask == "replica"]
        replicas = plan.topology.replicas
        found += [
            Pair(name, side(router), side(replica), tuple(_lines(router, replica, replicas)))
            for router in through
            for replica in past
            if router["concurrency"] == replicas * replica["concurrency"]
            and _asked(planned[router["workload"]]) == _asked(planned[replica["workload"]])
        ]
    return found


def _asked(load: LoadPoint) -> tuple[Any, ...]:
    """Return what of a request must be the same, so that its latencies can be compared."""
    return load.prompts, load.client_options


def _lines(router: Mapping[str, Any], replica: Mapping[str, Any], replicas: int) -> list[Line]:
    lines = [
        Line(column.label, column.unit, _spread(router, column.name), _spread(replica, column.name))
        for column in TERMINAL
        if column.name != OUTPUT
    ]
    label = f"Output tokens/s (one replica \N{MULTIPLICATION SIGN} {replicas})"
    return [*lines, Line(label, "", _spread(router, OUTPUT), _spread(replica, OUTPUT, replicas))]


def _spread(point: Mapping[str, Any], figure: str, times: int = 1) -> Spread | None:
    if point[f"{figure}_median"] is None:
        return None
    median, least, most = (times * point[f"{figure}_{statistic}"] for statistic in ("median", "min", "max"))
    return median, least, most
