"""The measurements as the page shows them: one block of data, of which its cells and plots are made.

``servemark verify`` makes the block of an archive again and compares it with the one in the archive's page, so it holds all numbers,
verdicts and reasons. It holds no other words: loads and phases are named when the page is rendered.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from servemark.report import charts, columns, formatting, histogram, starting, thinning, timelines, views
from servemark.report.data import PageData
from servemark.report.distributions import Distribution
from servemark.report.table import aggregate, ordered, rows, tidy

ID = "servemark-data"
"""Of the element of the page that holds the block, as JSON."""
_LOAD = ("deployment", "workload", "concurrency", "request_rate_per_s")
_MEASUREMENT = (
    *_LOAD,
    *("repetition", "verdict", "requests_asked", "requests_completed"),
    *(column.name for column in columns.VERDICTS),
)
_POINT = (
    *_LOAD,
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
    """

    block: dict[str, Any]
    specs: dict[str, Any]
    shown: thinning.Selection
    points: list[dict[str, Any]]
    panels: list[charts.Panel]
    throughputs: Mapping[str, str]
    bins: list[Distribution]
    moments: list[timelines.Shown]


def content(data: PageData, whole: bool | None = None) -> Content:
    """Return the block of a run and what else the page needs of it.

    Args:
        whole: show every measurement; by default, where there are at most ``thinning.WHOLE``.
    """
    frame = tidy(data.measurements, data.accounts.values())
    items = ordered(data.measurements)
    points = views.medians(aggregate(frame))
    shown = thinning.select(
        points,
        sorted({item.deployment for item in items if item.verdict != "INVALID"}),
        whole=len(items) <= thinning.WHOLE if whole is None else whole,
    )
    throughputs = charts.throughputs(rows(frame[["verdict", "devices"]]), data.hardware.accelerator)
    panels = charts.panels(rows(frame[shown.draws(items)]), shown.series, tuple(throughputs))
    startup = starting.spec([item for name, item in data.startups.items() if shown.plots(name)])
    bins = shown.distributions(data.distributions)
    moments = timelines.shown(shown.of_series(items), data.timelines)
    listed = zip(rows(frame), items, shown.lists(items), strict=True)
    block = {
        "whole": shown.whole,
        "verdicts": views.verdicts(data),
        "reasons": views.objections(items),
        "points": _table(shown.points, _POINT),
        "measurements": [
            {name: row[name] for name in _MEASUREMENT} | {"reasons": formatting.reasons(item)} for row, item, kept in listed if kept
        ],
        "curves": {panel.id: {name: _values(spec) for name, spec in panel.specs.items()} for panel in panels},
        "distributions": histogram.loads(bins),
        "timelines": [timelines.row(item) for item in moments],
        "startup": [{name: row[name] for name in ("deployment", "number", "seconds")} for row in _values(startup)],
    }
    specs = {
        "series": shown.series,
        "panels": {panel.id: {name: _bare(spec) for name, spec in panel.specs.items()} for panel in panels},
        "distribution": histogram.specs(shown.series) if bins else {},
        "timeline": timelines.specs() if moments else {},
        "startup": _bare(startup) if startup else None,
    }
    return Content(block, specs, shown, points, panels, throughputs, bins, moments)


def expanded(block: Mapping[str, Any]) -> dict[str, Any]:
    """Return the block with a dictionary for each row of a table.

    Raises:
        ValueError, KeyError, TypeError: the table is not built as ours is.
    """
    table = block["points"]
    return {**block, "points": [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]}


def _table(found: Iterable[Mapping[str, Any]], names: Sequence[str]) -> dict[str, Any]:
    """Return rows without the names of their columns, which would be most of the text."""
    return {"columns": list(names), "rows": [[row[name] for name in names] for row in found]}


def _values(spec: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    return list(spec["data"]["values"]) if spec else []


def _bare(spec: Mapping[str, Any]) -> dict[str, Any]:
    return {**spec, "data": {"values": []}}
