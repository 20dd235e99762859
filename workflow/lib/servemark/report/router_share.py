"""What the router adds: the same servers asked through the one address, and one of them past it with its share of the load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from servemark.report import views
from servemark.report.columns import TERMINAL
from servemark.report.comparison import OUTPUT, Point, Spread, spread
from servemark.report.data import RunRecords


@dataclass(frozen=True)
class Line:
    """A figure of both loads in ``unit``, as (median, least, most) of accepted repetitions; None where no request has it."""

    figure: str
    unit: str
    router: Spread | None
    replica: Spread | None

    @property
    def difference(self) -> float | None:
        """Return the median through the router less that of the replica; None where one of them is missing."""
        return None if self.router is None or self.replica is None else self.router[0] - self.replica[0]

    @property
    def percent(self) -> float | None:
        """Return the difference over the replica's median, per cent; None where that is 0 or missing."""
        if self.difference is None or self.replica is None or self.replica[0] == 0:
            return None
        return 100 * self.difference / self.replica[0]


@dataclass(frozen=True)
class Pair:
    """A load through the router and one of a replica that belong together, as rows of ``views.medians``.

    Lengths and client options are the same, and the router's concurrency is the replica's times the number of ``replicas``.
    ``busiest`` is the CPU time of the client's busiest process in any accepted repetition of router and replica, per cent of a core;
    None where it is not known.
    """

    router: Point
    replica: Point
    replicas: int
    busiest: tuple[float | None, float | None]

    @property
    def verdict(self) -> str:
        """Return SUSPECT where either side is."""
        return "SUSPECT" if "SUSPECT" in (self.router["verdict"], self.replica["verdict"]) else "VALID"

    @property
    def lines(self) -> list[Line]:
        """Return the latencies of the terminal's table, then output of the router and of as many replicas."""
        lines = [
            Line(column.label, column.unit, spread(self.router, column.name), spread(self.replica, column.name))
            for column in TERMINAL
            if column.name != OUTPUT
        ]
        label = f"Output tokens/s (one replica \N{MULTIPLICATION SIGN} {self.replicas})"
        return [*lines, Line(label, "", spread(self.router, OUTPUT), spread(self.replica, OUTPUT, self.replicas))]


def pairs(points: Sequence[Point], data: RunRecords) -> list[Pair]:
    """Return every pair of accepted loads that belong together, in the order of the loads through the router.

    Loads by request rate have no pair: Poisson arrivals at one replica are not a share of what the router hands on.

    Args:
        points: the medians of every load point (``views.medians``).
    """
    busiest = {(row["deployment"], row["workload"], row["load"]): row["cpu"] for row in views.clients(data)}

    def cpu(point: Point) -> float | None:
        return busiest.get((point["deployment"], point["workload"], point["load"]))

    found = []
    for name, plan in sorted(data.plans.items()):
        planned = {load.workload: load for load in plan.loads}
        accepted = [
            (point, planned[point["workload"]])
            for point in points
            if point["deployment"] == name and point["workload"] in planned and point["repetitions_accepted"]
            if point["concurrency"] is not None and point["request_rate_per_s"] is None
        ]
        found += [
            Pair(router, replica, plan.topology.replicas, (cpu(router), cpu(replica)))
            for router, through in accepted
            for replica, past in accepted
            if (through.ask, past.ask) == ("endpoint", "replica")
            and router["concurrency"] == plan.topology.replicas * replica["concurrency"]
            # Else their latencies could not be compared.
            and (through.prompts, through.client_options) == (past.prompts, past.client_options)
        ]
    return found
