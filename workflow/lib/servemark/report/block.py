"""The measurements as the page shows them: one block of data, of which its cells and plots are made.

``servemark verify`` makes the block of an archive again and compares it with the one in the archive's page, so it holds all numbers,
verdicts and reasons. It holds no other words: loads and phases are named when the page is rendered.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from servemark.report import charts, columns, distributions, formatting, starting, thinning, timelines, views
from servemark.report.gather import RunRecords
from servemark.report.table import LOAD, aggregate, ordered, rows, tidy

ID = "servemark-data"
"""Of the element of the page that holds the block, as JSON."""
_MEASUREMENT = (*LOAD, "repetition", "verdict", "requests_asked", "requests_completed", *(column.name for column in columns.VERDICTS))
_POINT = (
    *LOAD,
    *("verdict", "repetitions_asked", "repetitions_accepted"),
    *(f"{column.name}_{statistic}" for column in columns.MEDIANS for statistic in ("median", "min", "max")),
)


@dataclass(frozen=True)
class Content:
    """What the page shows of the measurements.

    Attributes:
        block: as JSON values. ``points`` is a table, see :func:`expanded`.
        specs: the specifications of the plots, without data.
        shown: which load points and deployments the page shows.
        points: the medians of all load points (``views.medians``), those that the page leaves out too.
        busiest: position of the timeline with the most output tokens per second.
    """

    block: dict[str, Any]
    specs: dict[str, Any]
    shown: thinning.Selection
    points: list[dict[str, Any]]
    panels: list[charts.Panel]
    throughputs: Mapping[str, str]
    bins: list[distributions.Distribution]
    busiest: int


def content(data: RunRecords, whole: bool | None = None) -> Content:
    """Return the block of a run and what else the page needs of it.

    Args:
        whole: show every measurement; by default, where there are at most ``thinning.WHOLE``.
    """
    frame = tidy(data.measurements, data.accounts.values())
    items = ordered(data.measurements)
    points = views.medians(aggregate(frame))
    accepted = sorted({item.deployment for item in items if item.verdict != "INVALID"})
    shown = thinning.select(points, accepted, whole=len(items) <= thinning.WHOLE if whole is None else whole)
    throughputs = charts.throughputs(rows(frame[["verdict", "devices"]]), data.machine.accelerator)
    panels = charts.panels(rows(frame[shown.draws(items)]), shown.series, tuple(throughputs))
    startups = [item for name, item in data.startups.items() if shown.plots(name)]
    bins = shown.distributions(data.distributions)
    moments = timelines.shown([item for item in items if shown.plots(item.deployment)], data.timelines)
    listed = zip(rows(frame), items, shown.lists(items), strict=True)
    block = {
        "whole": shown.whole,
        "verdicts": views.verdicts(data),
        "reasons": views.objections(items),
        # Without the names of the columns in each row, which would be most of the text.
        "points": {"columns": list(_POINT), "rows": [[point[name] for name in _POINT] for point in shown.points]},
        "measurements": [
            {name: row[name] for name in _MEASUREMENT} | {"reasons": formatting.reasons(item)} for row, item, kept in listed if kept
        ],
        "curves": {panel.id: panel.values for panel in panels},
        "distributions": [{metric: asdict(of) for metric, of in item.metrics.items()} for item in bins],
        "timelines": [row for _, row in moments],
        "startup": starting.bars(startups),
    }
    specs = {
        "series": shown.series,
        "panels": {panel.id: panel.specs for panel in panels},
        "distribution": distributions.specs(shown.series) if bins else {},
        "timeline": timelines.specs() if moments else {},
        "startup": starting.spec(startups),
    }
    busiest = max(range(len(moments)), key=lambda index: moments[index][0].output_throughput or 0.0, default=0)
    return Content(block, specs, shown, points, panels, throughputs, bins, busiest)


def expanded(block: Mapping[str, Any]) -> dict[str, Any]:
    """Return the block with a dictionary for each row of a table.

    Raises:
        ValueError, KeyError, TypeError: the table is not built as ours is.
    """
    table = block["points"]
    return {**block, "points": [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]}
