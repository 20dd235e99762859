"""Find where stated values differ from recomputed ones."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SAME = 1e-9
"""Relative. Another processor or numpy adds thousands of float64 in another order; no rounding in a file is this fine."""
ABSENT = "not there"
_NAMES = [
    "deployment",
    "point",
    "workload",
    "concurrency",
    "request_rate_per_s",
    "load",
    "repetition",
    "code",
    "number",
]


@dataclass(frozen=True)
class Difference:
    """A value that is not as recomputed.

    Attributes:
        path: the names that lead to the value, e.g. ``("plain chat-c1-r1", "ttft_p99_ms")``.
        where: the file, or the record, that states it.
        lacking: the file states no value of this name at all.
    """

    path: tuple[str, ...]
    where: str
    stated: Any
    recomputed: Any
    lacking: bool = False


def same(stated: Any, recomputed: Any) -> bool:
    """Return whether two values are one figure: equal, or numbers (also as text) that differ by less than ``SAME``."""
    if stated == recomputed:
        return True
    try:
        numbers = float(stated), float(recomputed)
    except (TypeError, ValueError, OverflowError):
        return False
    return bool not in (type(stated), type(recomputed)) and math.isclose(*numbers, rel_tol=SAME)


def compare(where: str, stated: Any, recomputed: Any, path: tuple[str, ...] = ()) -> Iterator[Difference]:
    """Yield every difference between two JSON values."""
    if isinstance(stated, Mapping) and isinstance(recomputed, Mapping):
        for name, value in recomputed.items():
            if name not in stated:
                yield Difference((*path, str(name)), where, ABSENT, value, lacking=True)
            elif stated[name] != value:
                yield from compare(where, stated[name], value, (*path, str(name)))
        for name in stated:
            if name not in recomputed:
                yield Difference((*path, str(name)), where, stated[name], ABSENT)
    elif isinstance(stated, (list, tuple)) and isinstance(recomputed, (list, tuple)):
        if len(stated) != len(recomputed):
            yield Difference((*path, "number of entries"), where, len(stated), len(recomputed))
            return
        for number, (theirs, ours) in enumerate(zip(stated, recomputed, strict=True)):
            yield from compare(where, theirs, ours, (*path, _name(ours, number)))
    elif not same(stated, recomputed):
        yield Difference(path, where, stated, recomputed)


def _name(entry: Any, number: int) -> str:
    """Return what tells an entry of a list from the others: its load point, else its position from 0."""
    known = [entry[name] for name in _NAMES if entry.get(name) is not None] if isinstance(entry, Mapping) else []
    return " ".join(map(str, known)) or str(number)


def compare_rows(where: str, stated: Sequence[Mapping[str, Any]], recomputed: Sequence[Mapping[str, Any]]) -> Iterator[Difference]:
    """Yield every cell of the tidy table that differs, and every row that only one side has."""
    ours, theirs = _by_point(recomputed), _by_point(stated)
    for key in [*ours, *(key for key in theirs if key not in ours)]:
        mine, other = ours.get(key, [{}])[0], theirs.get(key, [])
        if key not in ours or not other:
            yield Difference((key, "the row"), where, "there" if other else ABSENT, "there" if key in ours else ABSENT)
        elif len(other) > 1:
            yield Difference((key, "the row"), where, f"{len(other)} times", "once")
        else:
            yield from compare(where, other[0], mine, (key,))


def _by_point(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    found: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        found.setdefault(f"{row.get('deployment')} {row.get('point')}", []).append(row)
    return found


def lines(differences: Iterable[Difference]) -> list[str]:
    """Return one line for each value and what is stated in its place, with every file that states it."""
    places: dict[str, list[str]] = {}
    for item in differences:
        text = f"{': '.join(item.path)}: stated {_text(item.stated)}, recomputed {_text(item.recomputed)}"
        places.setdefault(text, []).append(item.where)
    return [f"{text} ({', '.join(dict.fromkeys(where))})" for text, where in places.items()]


def _text(value: Any) -> str:
    if value is None or value == "":
        return "nothing"
    if isinstance(value, (Mapping, list, tuple)):
        # Its text may be too deep for Python.
        return f"{len(value)} entries"
    text = f"{value:.10g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 200 else text[:197] + "..."
