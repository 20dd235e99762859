"""Choose what the report of a large run shows. measurements.csv and measurements.parquet hold all measurements."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, zip_longest
from typing import Any, TypeVar

from servemark.records import Measurement
from servemark.records.restarts import configured
from servemark.report import formatting
from servemark.report.comparison import OUTPUT, Point
from servemark.report.distributions import Distribution

WHOLE = 2_000
"""Measurements. A report of at most this many shows all of them; one of 20,000 would have 50 MB."""
POINTS = 2_000
"""Load points in the tables of a thinned report, but at least two of each deployment and workload."""
SERIES = 24
"""Deployments in the plots and cards of a thinned report."""
DRAWN = 1_500
"""Measurements in the curves of a thinned report: a browser draws each one five times."""
LISTED = 1_000
"""Entries in each list of a thinned report: measurements that are not VALID, gaps, earlier attempts."""

_Key = tuple[str, str, str]
_T = TypeVar("_T")


@dataclass(frozen=True)
class Selection:
    """The load points in the tables (rows of ``views.medians``) and the deployments in the plots (``series``) of a report."""

    whole: bool
    points: Sequence[Point]
    series: Sequence[str]
    kept: frozenset[_Key] = frozenset()
    drawn: frozenset[_Key] = frozenset()

    def shows(self, point: Point) -> bool:
        """Return whether the tables show the load point of this deployment, workload and load (in words)."""
        return self.whole or _key(point) in self.kept

    def lists(self, measurements: Sequence[Measurement]) -> list[bool]:
        """Return for each measurement whether the table of verdicts shows it: all, or the first ones that are not VALID."""
        seen = accumulate(item.verdict != "VALID" for item in measurements)
        return [self.whole or (item.verdict != "VALID" and number <= LISTED) for item, number in zip(measurements, seen, strict=True)]

    def first(self, entries: Sequence[_T]) -> Sequence[_T]:
        """Return the gaps or the earlier attempts to list."""
        return entries if self.whole else entries[:LISTED]

    def draws(self, measurements: Sequence[Measurement]) -> list[bool]:
        """Return for each measurement whether the curves show it."""
        return [self.whole or _key_of(item) in self.drawn for item in measurements]

    def plots(self, deployment: str) -> bool:
        """Return whether the plots show this deployment."""
        return self.whole or deployment in self.series

    def cards(self, cards: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Return the headline cards (``views.headlines``) of the plotted deployments, or the first card if there is none."""
        return [card for card in cards if self.plots(card["deployment"])] or list(cards[:1])

    def distributions(self, found: Sequence[Distribution]) -> list[Distribution]:
        """Return the distributions of the plotted deployments."""
        if self.whole:
            return list(found)
        some = []
        for item in found:
            counts = {m: {name: of for name, of in bins.counts.items() if name in self.series} for m, bins in item.metrics.items()}
            metrics = {metric: replace(bins, counts=counts[metric]) for metric, bins in item.metrics.items() if counts[metric]}
            some += [replace(item, metrics=metrics)] if metrics else []
        return some


def select(points: Sequence[Point], names: Sequence[str], *, whole: bool) -> Selection:
    """Return the selection of all load points, which are sorted by load. ``names`` are the deployments with accepted measurements."""
    if whole:
        return Selection(True, points, names)
    groups: dict[tuple[str, str], list[Point]] = {}
    for point in points:
        groups.setdefault((point["deployment"], point["workload"]), []).append(point)
    kept = [point for group in groups.values() for point in _some(group, POINTS // len(groups))]
    series = _series(groups, names)
    lines = [group for (deployment, _), group in groups.items() if deployment in series]
    each = DRAWN // max(1, len(lines) * max((point["repetitions_asked"] for point in points), default=1))
    drawn = frozenset(_key(point) for group in lines for point in _some(group, each))
    return Selection(False, kept, series, frozenset(map(_key, kept)), drawn)


def _some(group: Sequence[Point], most: int) -> list[Point]:
    """Return ``most`` points, at least 2: the one with the highest throughput, the heaviest, and others evenly spaced from the lightest."""
    if len(group) <= most:
        return list(group)
    best = max(range(len(group)), key=lambda index: group[index][f"{OUTPUT}_median"] or 0.0)
    chosen = {best, len(group) - 1}
    others = max(2, most) - len(chosen)
    chosen |= {index * (len(group) - 1) // others for index in range(others)}
    return [group[index] for index in sorted(chosen)]


def _series(groups: Mapping[tuple[str, str], Sequence[Point]], names: Sequence[str]) -> list[str]:
    """Return the deployments with the highest throughput, the same number from each workload."""
    best: dict[str, list[tuple[float, str]]] = {}
    for (deployment, workload), group in groups.items():
        if deployment in names:
            highest = max(point[f"{OUTPUT}_median"] or 0.0 for point in group)
            best.setdefault(workload, []).append((-highest, deployment))
    ranks = zip_longest(*(sorted(some) for some in best.values()))
    ranked = dict.fromkeys(entry[1] for rank in ranks for entry in rank if entry)
    return sorted(list(ranked)[:SERIES])


def _key(point: Point) -> _Key:
    return point["deployment"], point["workload"], point["load"]


def _key_of(item: Measurement) -> _Key:
    return configured(item.deployment), item.load.workload, formatting.load(item.load.concurrency, item.load.request_rate)
