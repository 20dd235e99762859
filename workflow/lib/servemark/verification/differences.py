"""A figure that is not what the per-request results give, and how figures are compared."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from servemark.report import formatting

SAME = 1e-9
"""Relative. Another processor or numpy adds thousands of float64 in another order; no rounding in a file is this fine."""


@dataclass(frozen=True)
class Difference:
    """``where`` names the file, or the record, that states the figure."""

    deployment: str
    point: str
    figure: str
    where: str
    stated: Any
    recomputed: Any


def same(stated: Any, recomputed: Any) -> bool:
    """Whether two values are one figure: equal, or numbers (also as text) that differ by less than ``SAME``."""
    if stated == recomputed:
        return True
    first, second = _float(stated), _float(recomputed)
    return first is not None and second is not None and math.isclose(first, second, rel_tol=SAME)


def _float(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def compare_rows(
    where: str, stated: Sequence[Mapping[str, Any]], recomputed: Sequence[Mapping[str, Any]]
) -> list[Difference]:
    """Every cell of the tidy table that differs; a row or column that one side lacks is told once."""
    found = []
    ours, theirs = _by_point(recomputed), _by_point(stated)
    for key in [*ours, *(key for key in theirs if key not in ours)]:
        if key not in theirs or key not in ours:
            found.append(Difference(*key, "the row", where, *(_there(key in side) for side in (theirs, ours))))
            continue
        if theirs[key] is None:
            found.append(Difference(*key, "the row", where, "several times", "once"))
            continue
        mine, other = ours[key] or {}, theirs[key] or {}
        for figure in [*mine, *(name for name in other if name not in mine)]:
            if figure not in other:
                found.append(Difference(*key, str(figure), where, "no such column", mine[figure]))
            elif not same(other[figure], mine.get(figure)):
                found.append(Difference(*key, str(figure), where, other[figure], mine.get(figure)))
    return found


def _there(present: bool) -> str:
    return "there" if present else "not there"


def _by_point(rows: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], Mapping[str, Any] | None]:
    found: dict[tuple[str, str], Mapping[str, Any] | None] = {}
    for row in rows:
        key = (str(row.get("deployment")), str(row.get("point")))
        found[key] = None if key in found else row
    return found


def lines(differences: Iterable[Difference]) -> list[str]:
    """One line a figure and stated value, with every place that states it."""
    places: dict[tuple[str, str, str, str, str], list[str]] = {}
    for item in differences:
        texts = (item.deployment, item.point, item.figure, _text(item.stated), _text(item.recomputed))
        places.setdefault(texts, []).append(item.where)
    return [
        f"{formatting.printable(f'{deployment} {point}: {figure}')}: stated {stated}, recomputed {recomputed} "
        f"({', '.join(dict.fromkeys(where))})"
        for (deployment, point, figure, stated, recomputed), where in places.items()
    ]


def _text(value: Any) -> str:
    if value is None or value == "":
        return "nothing"
    text = f"{value:.10g}" if isinstance(value, float) else str(value)
    return formatting.printable(text if len(text) <= 200 else text[:197] + "...")
