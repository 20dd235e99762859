"""Compare load points with latency targets, and find the best load that meets them; throughput per GPU against speed per user."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from servemark.measurement import search as load_search
from servemark.measurement import slo
from servemark.measurement.slo import PERCENTILES, Attainment, Targets
from servemark.records import Search
from servemark.records.restarts import configured
from servemark.report import charts, comparable, comparison, formatting, views
from servemark.report.columns import LOAD
from servemark.report.comparison import OUTPUT, Point, Ratio, Spread
from servemark.report.gather import RunRecords


@dataclass(frozen=True)
class Line:
    """A load point with accepted repetitions.

    Attributes:
        reached: the attainments of its accepted repetitions; one with too few requests has none.
        output: output tokens per second and device; on a CPU, of all ranks together.
    """

    point: Point
    reached: tuple[Attainment, ...]
    output: Spread | None

    @property
    def met(self) -> bool | None:
        """Whether every accepted repetition meets every target; None if one of them has too few requests and the others meet them."""
        if not all(one.met for one in self.reached):
            return False
        return True if len(self.reached) == self.point["repetitions_accepted"] else None


@dataclass(frozen=True)
class Choice:
    """What to run: the load with the highest throughput among comparable loads that meet the targets.

    Attributes:
        differs: model and settings in which these deployments differ from others; "" if all can be compared.
        best: None if no load meets the targets.
        following: the best such load of another deployment, or None; ``between`` is the ratio of its throughput to that of ``best``.
    """

    differs: str
    best: Line | None
    following: Line | None = None
    between: Ratio | None = None


@dataclass(frozen=True)
class Workload:
    """A workload with targets. ``state``: beginning of the names of the compared results (``views.state``)."""

    name: str
    wanted: Targets
    state: str
    lines: tuple[Line, ...]
    choices: tuple[Choice, ...]
    searches: tuple[Search, ...] = ()

    def search_of(self, deployment: str) -> Search | None:
        """Return the search on a deployment, or None."""
        return next((one for one in self.searches if one.deployment == deployment), None)

    @property
    def undecided(self) -> bool:
        """Return whether a search decided nothing, so that a lighter load may not help."""
        return any(map(load_search.undecided, self.searches))

    @property
    def blocked(self) -> bool:
        """Return whether SUSPECT trials kept a search from deciding anything."""
        return any(map(self.is_blocked, self.searches))

    def is_blocked(self, search: Search) -> bool:
        """Return whether a search decided nothing and has SUSPECT trials, so that more trials alone may not help."""
        suspect = any(line.point["verdict"] == "SUSPECT" and line.point["deployment"] == search.deployment for line in self.lines)
        return suspect and load_search.undecided(search)

    @property
    def words(self) -> str:
        """Return the targets, such as ``TTFT p95 at most 500 ms``."""
        return ", ".join(
            f"{latency.removesuffix('_ms').upper()} {name} at most {formatting.quantity(limit, 'ms')}"
            for latency, limits in self.wanted.items()
            for name, limit in sorted(limits.items(), key=lambda item: PERCENTILES[item[0]])
        )


def workloads(points: Sequence[Point], data: RunRecords) -> list[Workload]:
    """Return each workload with targets and accepted measurements, by name. ``points`` are rows of ``views.medians``."""
    reached: dict[tuple[Any, ...], list[Attainment]] = {}
    for item in data.measurements:
        if found := data.attainments.get((item.deployment, item.load.name)):
            load = item.load
            reached.setdefault((configured(item.deployment), load.workload, load.concurrency, load.request_rate), []).append(found)
    result = []
    for name, wanted in sorted(slo.targets(data.config).items()):
        mine = [point for point in points if point["workload"] == name and point["repetitions_accepted"]]
        state = views.state(mine)
        lines = tuple(
            Line(
                point,
                tuple(reached.get(tuple(point[part] for part in LOAD), ())),
                comparison.spread(point, state + OUTPUT, 1 / devices(point, data)),
            )
            for point in mine
        )
        searches = tuple(one for found in data.searches.values() for one in found if one.asked.workload == name)
        if lines:
            result.append(Workload(name, wanted, state, lines, tuple(_choices(lines, searches, data)), searches))
    return result


def devices(point: Point, data: RunRecords) -> int:
    """Return the GPUs by which a throughput is divided; 1 on a CPU, which its ranks share."""
    plan = data.plans.get(point["deployment"])
    return plan.asked_by(point["workload"]).world_size if plan and data.machine.accelerator != "cpu" else 1


def _choices(lines: Sequence[Line], searches: Sequence[Search], data: RunRecords) -> Iterable[Choice]:
    names = sorted({line.point["deployment"] for line in lines} & set(data.plans))
    identities, differences = comparable.identities(data), comparable.differences(data, names)
    for identity, differs in differences.items():
        mine = [line for line in lines if identities.get(line.point["deployment"]) == identity]
        yield _choice(differs, [line for line in mine if _can_be_chosen(line, searches)])


def _can_be_chosen(line: Line, searches: Sequence[Search]) -> bool:
    """Return whether a load meets the targets: the lower end of the bracket where a search found one, else any load that does."""
    point = line.point
    for search in searches:
        if search.deployment == point["deployment"]:
            return search.meets in (point["concurrency"], point["request_rate_per_s"]) and search.meets is not None
    return bool(line.met)


def _choice(differs: str, lines: Sequence[Line]) -> Choice:
    """Return the best of comparable loads that meet the targets. VALID loads come before SUSPECT ones, whatever their throughput."""
    meeting = [(line, line.output) for line in lines if line.output]
    meeting.sort(key=lambda pair: (pair[0].point["verdict"] == "VALID", pair[1].median), reverse=True)
    if not meeting:
        return Choice(differs, None)
    best, output = meeting[0]
    others = [pair for pair in meeting if pair[0].point["deployment"] != best.point["deployment"]]
    if not others:
        return Choice(differs, best)
    return Choice(differs, best, others[0][0], comparison.ratio(others[0][1], output))


def pareto(points: Sequence[Point], data: RunRecords, names: Sequence[str]) -> list[tuple[str, dict[str, Any], list[dict[str, Any]]]]:
    """Return for each workload its name, a plot of throughput per GPU against speed per user, and the rows of the plot.

    A row is a load point with accepted repetitions. ``user`` is output tokens per second over requests in flight, as in vLLM's
    ``bench sweep plot_pareto``. The inverse of TPOT would have no limit if tokens arrive in bursts. ``front`` states whether no comparable
    load is better in one of the two and at least as good in the other.

    Args:
        names: the deployments of the legend, in its order.
    """
    identities = comparable.identities(data)
    on_cpu = data.machine.accelerator == "cpu"
    result = []
    for workload in sorted({point["workload"] for point in points}):
        mine = [point for point in points if point["workload"] == workload and point["deployment"] in names]
        state = views.state(mine)
        known = [(point, comparison.spread(point, state + OUTPUT, 1 / devices(point, data))) for point in mine]
        rows = [
            {
                "deployment": point["deployment"],
                "load": point["load"],
                "user": output.median * devices(point, data) / users,
                "device": output.median,
                "verdict": point["verdict"],
            }
            for point, output in known
            if output and (users := point[f"{state}in_flight_median"])
        ]
        kinds = [identities.get(row["deployment"]) for row in rows]
        for row, kind in zip(rows, kinds, strict=True):
            row["group"] = kinds.index(kind)
        for group in set(map(kinds.index, kinds)):
            _mark_front([row for row in rows if row["group"] == group])
        if len(rows) > 1:
            title = "Output tokens per second" + ("" if on_cpu else " per GPU")
            text = f"{title} against output tokens per second of one user, one point per load. The table of medians contains the numbers."
            result.append((workload, charts.plot("pareto", **charts.looks(names), y_title=title, description=text), rows))
    return result


def _mark_front(rows: Sequence[dict[str, Any]]) -> None:
    """Set ``front`` of comparable rows."""
    highest = (-math.inf, -math.inf)
    for row in sorted(rows, key=lambda row: (row["user"], row["device"]), reverse=True):
        # Rows with equal values are both on the front or both not.
        row["front"] = row["device"] > highest[1] or (row["user"], row["device"]) == highest
        highest = (row["user"], row["device"]) if row["front"] else highest
