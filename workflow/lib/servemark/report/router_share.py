"""What the router adds: the same servers asked through the one address, and one of them past it with its share of the load."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from servemark.report import views
from servemark.report.columns import TERMINAL
from servemark.report.comparison import OUTPUT, Point, Spread, spread
from servemark.report.data import RunRecords


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
