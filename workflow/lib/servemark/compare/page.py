"""Write the page of a comparison: one offline file with the curves of both sides, in the look of the report."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from servemark import __version__
from servemark.compare import text
from servemark.compare.compared import Compared
from servemark.compare.metrics import METRICS
from servemark.compare.side import LoadKey, Side
from servemark.records import ComparedPoint, Measurement, write_atomically
from servemark.records.restarts import MARK
from servemark.report import charts, page

MOST = 300
"""Load points in the table, and entries of the list of others. Of 2,000 points the table alone would have 8 MB."""


def write(found: Compared, path: Path) -> None:
    """Write the page."""
    write_atomically(path, render(found))


def render(found: Compared, bundle: str | None = None) -> str:
    """Return the page as HTML text. ``bundle``: as for ``report.page.render``."""
    measured = found.b if found.a.is_reference else found.a
    data = replace(
        measured.data,
        measurements=list(_measurements(found)),
        config={}, points=[], plans={}, startups={}, accounts={}, distributions=(), timelines={},
    )  # fmt: skip
    made = page.content(data)
    counts = Counter(metric.verdict for point in found.record.points for metric in point.metrics)
    return page.document(
        "compare.html.j2",
        made,
        bundle,
        found=found.record,
        rows=_rows(found.record.points),
        counts=dict(sorted(counts.items())),
        looks={look["name"]: look for look in charts.series(made.shown.series)},
        rounded={},
        limit=text.limit,
        metrics=METRICS,
        most=MOST,
        version=__version__,
    )


def _rows(points: Sequence[ComparedPoint]) -> list[ComparedPoint]:
    """Return at most ``MOST`` load points, those with a difference first, in the order of all."""
    differ = [any(metric.verdict in ("better", "worse") for metric in point.metrics) for point in points]
    first = sorted(range(len(points)), key=lambda at: (not differ[at], at))[:MOST]
    return [points[at] for at in sorted(first)]


def _measurements(found: Compared) -> Iterator[Measurement]:
    """Yield the measurements of the common load points; side and deployment are the name of a curve."""
    for side, at in ((found.a, 0), (found.b, 1)):
        names: dict[tuple[str, LoadKey], str] = {}
        for pair in found.joined.pairs:
            names |= {((pair.a, pair.b)[at].name, points[at].at): points[0].at.workload for points in pair.points}
        yield from _of(side, names)


def _of(side: Side, names: dict[tuple[str, LoadKey], str]) -> Iterator[Measurement]:
    for item in side.data.measurements:
        name, _, start = item.deployment.partition(MARK)
        load = item.load
        workload = names.get((name, LoadKey(load.workload, load.concurrency, load.request_rate)))
        if workload is not None:
            label = f"{side.label}: {name}{MARK}{start}" if start else f"{side.label}: {name}"
            yield item.model_copy(update={"deployment": label, "load": load.model_copy(update={"workload": workload})})
