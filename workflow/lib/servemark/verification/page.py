"""What the report page states against the page that the per-request results give.

The page is made again from the recomputed measurements, by the code that makes every page; then the figures of both are
compared as a reader finds them. Its wording, its look and its scripts may be those of another version.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from servemark import __version__
from servemark.records import Measurement
from servemark.report import distributions, formatting, views
from servemark.report.data import PageData
from servemark.report.page import render
from servemark.verification.contents import Contents, locate
from servemark.verification.differences import Difference, same
from servemark.verification.reading import Line, Page, read_page

REPORT = "report.html"
# The two rows of its head name the columns only together.
_MEDIANS = (
    *("Deployment", "Workload", "Load", "Accepted"),
    *(
        f"{column} (median and range)"
        for column in (*formatting.THROUGHPUTS, *(c for _, cs in views.LATENCY_COLUMNS for c in cs))
    ),
)
_KEYS = {"figures": 3, "verdicts": 4, "comparison": 2, "router": 4, "attempts": 2, "timeline": 4}
_NUMBER = re.compile(r"\d[\d.,\N{NARROW NO-BREAK SPACE}]*")


def compare_page(contents: Contents, recomputed: Sequence[Measurement]) -> tuple[list[Difference], list[str]]:
    """The differences of report.html, and what is wrong with it as a page."""
    path = locate(contents.folder, REPORT)
    if path is None:
        return [], [f"{REPORT} is missing."]
    if contents.hardware is None:
        return [], [f"{REPORT} was not checked: hardware.json cannot be read."]
    stated = read_page(path.read_text(encoding="utf-8", errors="replace"))
    # Pages of an older servemark show every measurement of a run of any size.
    expected = read_page(render(_data(contents, recomputed), bundle="", whole=stated.whole))
    wrong = []
    if stated.drawings is None:
        wrong.append(f"{REPORT} holds no data of its plots.")
    differences = [*_drawings(stated, expected), *_lines(stated, expected)]
    if (wrong or differences) and stated.version != __version__:
        wrong.append(
            f"{REPORT} was written by servemark {stated.version or '(unknown)'}, and this is {__version__}: what differs in "
            "it alone may be due to that."
        )
    return differences, wrong


def _data(contents: Contents, measurements: Sequence[Measurement]) -> PageData:
    assert contents.hardware is not None, "asked by the caller"
    results = [(item, files.raw) for item, files in zip(measurements, contents.points, strict=False)]
    return PageData(
        run=contents.run,
        config=contents.config,
        hardware=contents.hardware,
        environments={},
        checks=contents.checks,
        manifests=contents.manifests,
        plans=contents.plans,
        startups=contents.startups,
        stopped=contents.stopped,
        fabrics=contents.fabrics,
        accounts=contents.accounts,
        measurements=measurements,
        rejected=contents.rejected,
        attempts=contents.attempts,
        distributions=distributions.distributions(results),
        timelines=contents.timelines,
        version=__version__,
        commit="",
        commands=(),
    )


def _drawings(stated: Page, expected: Page) -> Iterator[Difference]:
    where = f"{REPORT}, plots"
    theirs, ours = dict(_values(stated.drawings)), dict(_values(expected.drawings))
    for plot, mine in ours.items():
        other = theirs.get(plot, [])
        if len(other) != len(mine):
            yield Difference("", plot, "number of points", where, len(other), len(mine))
            continue
        if (first := _edges(other)) != (second := _edges(mine)):
            # One latency may move every bin: that says nothing of the other deployments' counts.
            load, _, metric = plot.partition(" ")
            yield Difference("", expected.panels.get(load, load), f"{metric} bins", where, first, second)
            continue
        for theirs_row, row in zip(other, mine, strict=True):
            for figure in [*row, *(name for name in theirs_row if name not in row)]:
                if not same(theirs_row.get(figure), row.get(figure)):
                    yield Difference(
                        str(row.get("deployment")),
                        _place(expected, plot, row),
                        f"{plot.rpartition(' ')[2]} {figure}",
                        where,
                        theirs_row.get(figure),
                        row.get(figure),
                    )
    for plot in theirs:
        if plot not in ours:
            yield Difference("", plot, "plot", where, "there", "not there")


def _values(drawings: Mapping[str, Any] | None) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Plot -> its rows; a plot that is not built as ours are has none."""
    found = drawings or {}
    panels = found.get("panels")
    for panel, specs in (panels if isinstance(panels, dict) else {}).items():
        for metric, spec in (specs if isinstance(specs, dict) else {}).items():
            yield f"{panel} {metric}", _rows(spec)
    if found.get("startup") is not None:
        yield "startup", _rows(found["startup"])
    for number, load in enumerate(_list(found.get("distribution"), "loads")):
        for metric, bins in (load if isinstance(load, dict) else {}).items():
            yield f"load-{number} {metric}", _bins(bins)
    for number, point in enumerate(_list(found.get("timeline"), "points")):
        yield f"point-{number} timeline", _moments(point)


def _list(value: Any, name: str) -> list[Any]:
    found = value.get(name) if isinstance(value, dict) else None
    return found if isinstance(found, list) else []


def _bins(bins: Any) -> list[dict[str, Any]]:
    """A row for each deployment's bin, as the counts and edges of a load state it."""
    edges, counts = (bins.get("edges"), bins.get("counts")) if isinstance(bins, dict) else (None, None)
    if not isinstance(edges, list) or not isinstance(counts, dict):
        return []
    return [
        {"deployment": name, "from": low, "to": high, "samples": count}
        for name, of in counts.items()
        if isinstance(of, list)
        for low, high, count in zip_longest(edges, edges[1:], of)
    ]


def _edges(rows: Sequence[Mapping[str, Any]]) -> str | None:
    """Where the bins of a distribution lie, in words; None of anything else."""
    edges = list(dict.fromkeys(row.get("from") for row in rows if "samples" in row))
    return f"{len(edges)} from {edges[0]} to {edges[-1]} ms" if edges else None


def _moments(point: Any) -> list[dict[str, Any]]:
    columns = point.get("columns") if isinstance(point, dict) else None
    if not isinstance(columns, dict) or not all(isinstance(values, list) for values in columns.values()):
        return []
    return [
        {"deployment": point.get("deployment"), **dict(zip(columns, values, strict=True))}
        for values in zip_longest(*columns.values())
    ]


def _rows(spec: Any) -> list[dict[str, Any]]:
    data = spec.get("data") if isinstance(spec, dict) else None
    values = data.get("values") if isinstance(data, dict) else None
    return values if isinstance(values, list) and all(isinstance(row, dict) for row in values) else []


def _place(page: Page, plot: str, row: Mapping[str, Any]) -> str:
    if "phase" in row:
        return str(row["phase"])
    panel = plot.partition(" ")[0]
    name = page.panels.get(panel, panel)
    if "samples" in row:
        return f"{name}, bin from {row.get('from')} ms"
    if "seconds" in row:
        return f"{name}, second {row.get('seconds')}"
    return f"{name}, load {row.get('load'):g}, repetition {row.get('repetition')}"


def _lines(stated: Page, expected: Page) -> Iterator[Difference]:
    theirs, ours = _by_section(stated), _by_section(expected)
    for section in [*ours, *(name for name in theirs if name not in ours)]:
        where = f"{REPORT}, {section}"
        mine, other = ours.get(section, []), theirs.get(section, [])
        if len(mine) != len(other):
            yield Difference("", section, "number of lines", where, len(other), len(mine))
            continue
        head: tuple[str, ...] = ()
        for line, told in zip(mine, other, strict=True):
            # A table's head has the words of the version that wrote it, and no figure.
            if line.head:
                head = line.cells
            elif line.cells != told.cells:
                yield from _cells(where, line, told, head)


def _by_section(page: Page) -> dict[str, list[Line]]:
    found: dict[str, list[Line]] = {}
    for line in page.lines:
        found.setdefault(line.section, []).append(line)
    return found


def _cells(where: str, line: Line, told: Line, head: Sequence[str]) -> Iterator[Difference]:
    if len(line.cells) == 1 or len(line.cells) != len(told.cells):
        first, second = (" | ".join(item.cells) for item in (told, line))
        # Sentences may be worded otherwise; their numbers may not.
        if len(line.cells) != len(told.cells) or _NUMBER.findall(first) != _NUMBER.findall(second):
            yield Difference(line.about, line.section, "text", where, first, second)
        return
    keys = _KEYS.get(line.section, 1)
    names = _MEDIANS if line.section == "figures" else head
    deployment, point = (
        (line.about, line.section) if line.section == "headline" else (line.cells[0], ", ".join(line.cells[1:keys]))
    )
    for place, (mine, other) in enumerate(zip(line.cells, told.cells, strict=True)):
        if mine != other:
            figure = names[place] if place < len(names) else f"column {place + 1}"
            if line.section == "headline":
                figure = f"{line.cells[0]} {figure}"
            yield Difference(deployment, point or line.section, figure, where, other, mine)
