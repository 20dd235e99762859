"""Print the results of a run for a terminal: every measurement, then the medians of the repetitions with their intervals."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from servemark.measurement import search
from servemark.report import comparable, comparison, formatting, table, views
from servemark.report.columns import LOAD
from servemark.report.comparison import OUTPUT, Row, Spread
from servemark.report.gather import RunRecords

_HEADINGS = ("deployment", "workload", "load", "reps", "out tok/s", "95 % interval", "ratio to the best")
_NUMBERS = range(3, 5)
"""Columns that are aligned to the right."""


def results(data: RunRecords) -> str:
    """Return all measurements as a table and, if a load point has several repetitions, a second table with their medians.

    The second table compares output tokens/s with the best comparable deployment on as many devices, as the report does.
    """
    frame, rounded = table.tidy(data.measurements, data.accounts.values(), data.attainments), comparable.rounded(data)
    points = views.medians(table.aggregate(frame))
    found = table.text_table(frame, rounded) + "".join(_searches(data))
    if all(point["repetitions_asked"] < 2 for point in points):
        return found
    return f"{found}\n{_medians(points, data, rounded)}"


def _searches(data: RunRecords) -> Iterator[str]:
    """Yield one line for each search with its bracket."""
    for found in (one for searches in data.searches.values() for one in searches):
        subject = formatting.printable(f"{found.deployment}, {found.asked.workload}")
        yield f"search: {subject}: {search.words(found)}; {len(found.trials)} of at most {found.asked.trials} trials\n"


def _medians(points: Sequence[Mapping[str, Any]], data: RunRecords, rounded: Mapping[str, str]) -> str:
    compared = {_key(row.point): row for group in comparison.groups(points, data) for row in group.rows}
    rows = [list(_HEADINGS), *(list(_cells(point, compared.get(_key(point)), rounded)) for point in points)]
    widths = [max(len(row[at]) for row in rows) for at in range(len(_HEADINGS))]
    # The longest names give way.
    while sum(widths) + 2 * (len(widths) - 1) > table.WIDTH and max(widths[:2]) > table.NARROWEST:
        widths[widths.index(max(widths[:2]))] -= 1
    lines = ["medians of the accepted repetitions; (whole run): compared without a steady state"]
    for row in rows:
        fitted = [table.fit(cell, width) for cell, width in zip(row, widths, strict=True)]
        aligned = [
            f"{cell:>{width}}" if at in _NUMBERS else f"{cell:<{width}}"
            for at, (cell, width) in enumerate(zip(fitted, widths, strict=True))
        ]
        lines.append("  ".join(aligned).rstrip())
    return "\n".join(lines) + "\n"


def _key(point: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(point[name] for name in LOAD)


def _cells(point: Mapping[str, Any], row: Row | None, rounded: Mapping[str, str]) -> Iterator[str]:
    """Yield the texts of one row, in the order of ``_HEADINGS``."""
    deployment, workload, load = table.names(point)
    yield from (formatting.printable(deployment), formatting.printable(workload), load)
    yield f"{point['repetitions_accepted']}/{point['repetitions_asked']}"
    state = row.state if row else views.state([point])
    output = comparison.spread(point, state + OUTPUT)
    if output is None:
        yield from ("-", "no result", "")
        return
    yield table.terminal_number(output.median) + table.mark(point, rounded)
    yield _interval(output) + ("" if state else " (whole run)")
    if row is None or row.best is None:
        yield "not compared"
    elif row.between is None:
        yield "the best"
    else:
        yield f"{formatting.ratio(row.ratio)} {row.between.words}".replace("\N{NO-BREAK SPACE}", " ")


def _interval(values: Spread) -> str:
    return "no interval" if values.low is None else f"{table.terminal_number(values.low)} to {table.terminal_number(values.high)}"
