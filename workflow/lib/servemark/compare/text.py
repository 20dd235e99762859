"""Print a comparison for a terminal, at most ``table.WIDTH`` columns wide."""

import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from servemark.compare.gate import Limit
from servemark.compare.metrics import METRICS
from servemark.records import ComparedMetric, ComparedPoint, ComparedSide, Comparison, Difference, GateResult, OneSided
from servemark.report import formatting, table

MOST = 30
"""Entries of each list, and load points whose metrics are all printed. compare.json has the rest."""
_HEADINGS = ("", "A", "B", "B / A", "95 % interval", "B against A")
_WIDTHS = (26, 11, 11, 7, 16, 20)
_NUMBERS = range(1, 4)
"""Columns that are aligned to the right."""


def text(found: Comparison) -> str:
    """Return the comparison as text: what differs, the common load points, the others, the limits."""
    lines = [*_side("A", found.a), *_side("B", found.b), "", *_differences(found.differences), "", *_points(found.points)]
    if any(point.suspect_a or point.suspect_b for point in found.points):
        lines.append("? = a repetition is SUSPECT: accepted, but a check failed. `servemark show` counts the reasons.")
    if any(metric.part == "whole run" for point in found.points for metric in point.metrics):
        lines.append("whole = whole run, start and end included: a side has no such result in the steady state.")
    lines += ["", *_summary(found)]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def limit(gate: GateResult) -> str:
    """Return a limit as in --gate."""
    return Limit(gate.metric, gate.percent).text


def place(point: ComparedPoint) -> str:
    """Return the name of a load point on one line."""
    return formatting.printable(f"{point.pair}, {point.workload}, {point.load}")


def _side(label: str, side: ComparedSide) -> list[str]:
    name = f"{side.kind} {side.path}" + ("" if side.kind == "reference" else f", run {side.run}")
    name += f", identity {side.identity}" if side.identity else ""
    name += f": {side.run}. {side.source}" if side.source else ""
    return _wrapped(f"{label:<4}", name)


def _wrapped(label: str, words: str) -> list[str]:
    words = formatting.printable(words.replace("\N{NO-BREAK SPACE}", " "))
    return textwrap.wrap(words, table.WIDTH, initial_indent=label, subsequent_indent=" " * len(label), break_on_hyphens=False)


def _differences(differences: Sequence[Difference]) -> Iterator[str]:
    if not differences:
        yield "Model, software, hardware, topology, options, variables and load do not differ."
        return
    yield "What differs (A -> B):"
    for one in differences[:MOST]:
        pairs = f"  [{', '.join(one.pairs[:3])}{' ...' if len(one.pairs) > 3 else ''}]" if one.pairs else ""
        yield from _wrapped(f"  {one.part:<10}", f"{one.name}: {value(one.a)} -> {value(one.b)}{pairs}")
    yield from _more(len(differences) - MOST, "difference")


def value(given: str | None) -> str:
    """Return one side of a difference in words."""
    return "not set" if given is None else given


def _more(count: int, what: str) -> Iterator[str]:
    if count > 0:
        yield f"  and {_plural(count, what)} more: -o FOLDER writes all of them"


def _plural(count: int, noun: str) -> str:
    return formatting.plural(count, noun).replace("\N{NO-BREAK SPACE}", " ")


def _points(points: Sequence[ComparedPoint]) -> Iterator[str]:
    """Yield the table. Of many load points, only metrics that differ are printed."""
    every = len(points) <= MOST
    yield _row(_HEADINGS)
    shown = 0
    for point in points:
        metrics = [one for one in point.metrics if every or one.verdict in ("better", "worse")]
        if not metrics or (not every and shown >= MOST):
            continue
        shown += 1
        repetitions = f"{point.repetitions_a} and {point.repetitions_b} repetitions"
        yield table.fit(f"{place(point)} ({repetitions})", table.WIDTH)
        yield from (_row(_cells(point, one)) for one in metrics)
    if not every:
        yield f"{shown} of {_plural(len(points), 'load point')} shown, only metrics that differ: -o FOLDER writes all of them"


def _cells(point: ComparedPoint, one: ComparedMetric) -> tuple[str, ...]:
    label = METRICS[one.metric].label + (", whole" if one.part == "whole run" else "")
    numbers = (table.terminal_number(side) + ("?" if doubt else "") for side, doubt in ((one.a, point.suspect_a), (one.b, point.suspect_b)))
    interval = "no interval" if one.low is None else f"{formatting.ratio(one.low)} to {formatting.ratio(one.high)}"
    ratio = table.terminal_number(None) if one.ratio is None else formatting.ratio(one.ratio)
    return (f"  {label}", *numbers, ratio, interval, one.verdict)


def _row(cells: Sequence[str]) -> str:
    aligned = (
        f"{cell:>{width}}" if at in _NUMBERS else f"{cell:<{width}}" for at, (cell, width) in enumerate(zip(cells, _WIDTHS, strict=True))
    )
    return table.fit("  ".join(aligned).rstrip(), table.WIDTH)


def _summary(found: Comparison) -> Iterator[str]:
    counts = Counter(metric.verdict for point in found.points for metric in point.metrics)
    words = ", ".join(f"{counts[name]} {name}" for name in ("better", "worse", "no difference shown", "cannot tell") if counts[name])
    suspect = f" ({found.suspect} with a SUSPECT repetition)" if found.suspect else ""
    yield f"{_plural(len(found.points), 'common load point')}{suspect}: {words or 'no common metric'}"
    whys = Counter(metric.why for point in found.points for metric in point.metrics if metric.why)
    yield from (f"  cannot tell for {_plural(count, 'result')}: {why}" for why, count in list(whys.items())[:MOST])
    yield from _one_sided(found.one_sided)
    for gate in found.gates:
        state = gate.state.upper() if gate.exceeded else gate.state
        yield f"gate {limit(gate)}: {state}, {len(gate.exceeded)} of {_plural(gate.points, 'load point')} beyond it"
        yield from _undecided(gate, found.points)


def _undecided(gate: GateResult, points: Sequence[ComparedPoint]) -> Iterator[str]:
    """Yield why a limit is undecided. Such a point does not fail."""
    metrics = [next((one for one in point.metrics if one.metric == gate.metric), None) for point in points]
    whys = Counter("a side has no such result" if one is None else one.why for one in metrics if one is None or one.why)
    yield from (f"  cannot tell for {_plural(count, 'load point')}: {why}" for why, count in list(whys.items())[:MOST])


def _one_sided(points: Sequence[OneSided]) -> Iterator[str]:
    groups: dict[tuple[str, str, str], list[OneSided]] = {}
    for point in points:
        groups.setdefault((point.side, point.deployment, point.why), []).append(point)
    if points:
        yield f"{_plural(len(points), 'load point')} on one side only:"
    for (side, deployment, why), some in list(groups.items())[:MOST]:
        names = f"{', '.join(_names(some[:3]))}{f' and {len(some) - 3} more' if len(some) > 3 else ''}"
        yield from _wrapped(f"  {side} ", f"{deployment}: {names}: {why}")
    yield from _more(len(groups) - MOST, "entry")


def _names(points: Iterable[OneSided]) -> Iterator[str]:
    return (f"{point.workload} {point.load}" for point in points)
