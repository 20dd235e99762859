"""Compare the archive's table and report with the recomputed measurements.

Of the report, only its data block is compared. A change of the visible cells alone changes the archive's identity.
"""

import csv
import io
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow
import pyarrow.parquet

from servemark.records import Measurement
from servemark.report import packed, page, table
from servemark.report.gather import RunRecords, locate

CSV, PARQUET, REPORT = "measurements.csv", "measurements.parquet", "report.html"
_FRACTION = re.compile(r"-?\d+\.\d+(e[-+]?\d+)?", re.ASCII)
_BLOCK = re.compile(rf'<script type="application/json" id="{page.BLOCK_ID}">(.*?)</script>', re.DOTALL)
SAME = 1e-9
"""Relative tolerance. Another processor or numpy may add float64 values in another order; rounding in a file is coarser."""
ABSENT = "not there"
_NAMES = ("deployment", "point", "workload", "concurrency", "request_rate_per_s", "load", "repetition", "code", "number")


@dataclass(frozen=True)
class Difference:
    """A stated value that differs from the recomputed one.

    Attributes:
        path: the names that lead to the value, such as ``("plain chat-c1-r1", "ttft_p99_ms")``.
        where: the file or the record that states it.
        missing: the file states no value under this name.
    """

    path: tuple[str, ...]
    where: str
    stated: Any
    recomputed: Any
    missing: bool = False


def same(stated: Any, recomputed: Any) -> bool:
    """Return whether two values are equal, or numbers (also as text) that differ by less than ``SAME``."""
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
        for name in dict.fromkeys((*recomputed, *stated)):
            if name not in stated:
                yield Difference((*path, str(name)), where, ABSENT, recomputed[name], missing=True)
            elif name not in recomputed:
                yield Difference((*path, str(name)), where, stated[name], ABSENT)
            elif stated[name] != recomputed[name]:
                yield from compare(where, stated[name], recomputed[name], (*path, str(name)))
    elif isinstance(stated, (list, tuple)) and isinstance(recomputed, (list, tuple)):
        if len(stated) != len(recomputed):
            yield Difference((*path, "number of entries"), where, len(stated), len(recomputed))
            return
        for number, (theirs, ours) in enumerate(zip(stated, recomputed, strict=True)):
            yield from compare(where, theirs, ours, (*path, _name(ours, number)))
    elif not same(stated, recomputed):
        yield Difference(path, where, stated, recomputed)


def _name(entry: Any, number: int) -> str:
    """Return the name of a list entry: its load point, otherwise its position from 0."""
    known = [entry[name] for name in _NAMES if entry.get(name) is not None] if isinstance(entry, Mapping) else []
    return " ".join(map(str, known)) or str(number)


def compare_rows(where: str, stated: Iterable[Mapping[str, Any]], recomputed: Iterable[Mapping[str, Any]]) -> Iterator[Difference]:
    """Yield every cell of the tidy table that differs, and every missing, extra or repeated row."""
    ours, theirs = _by_point(recomputed), _by_point(stated)
    for key in dict.fromkeys((*ours, *theirs)):
        mine, other = ours.get(key, []), theirs.get(key, [])
        if len(mine) == len(other):
            for their_row, our_row in zip(other, mine, strict=True):
                yield from compare(where, their_row, our_row, (key,))
        else:
            yield Difference((key, "rows"), where, len(other), len(mine))


def _by_point(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    found: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        found.setdefault(f"{row.get('deployment')} {row.get('point')}", []).append(row)
    return found


def lines(differences: Sequence[Difference]) -> list[str]:
    """Return one line for each wrong value, with every file that states it."""
    places: dict[str, dict[str, None]] = {}
    for item in differences:
        text = f"{': '.join(item.path)}: stated {_text(item.stated)}, recomputed {_text(item.recomputed)}"
        places.setdefault(text, {})[item.where] = None
    return [f"{text} ({', '.join(where)})" for text, where in places.items()]


def _text(value: Any) -> str:
    if value is None or value == "":
        return "nothing"
    if isinstance(value, (Mapping, list, tuple)):
        # Python cannot print deeply nested values.
        return f"{len(value)} entries"
    text = f"{value:.10g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 200 else text[:197] + "..."


def compare_tables(folder: Path, recomputed: pd.DataFrame) -> Iterator[Difference | str]:
    """Yield the differences of measurements.csv and measurements.parquet, or why a file cannot be read."""
    for name in (CSV, PARQUET):
        path = locate(folder, name)
        if path is None:
            yield f"{name} is missing."
            continue
        # csv_text changes formulas and carriage returns, so the recomputed table goes through it, too.
        expected = _csv(table.csv_text(recomputed)) if name == CSV else table.rows(recomputed)
        try:
            stated = _csv(path.read_text(encoding="utf-8")) if name == CSV else _parquet(path, len(expected))
        except (csv.Error, pyarrow.ArrowException, OSError, ValueError) as error:
            yield f"{name} cannot be read: {error}"
            continue
        yield from compare_rows(name, stated, expected)


def _csv(text: str) -> list[dict[str, Any]]:
    """Return the rows, with decimal fractions as numbers and everything else as text."""
    return [
        {name: float(cell) if isinstance(cell, str) and _FRACTION.fullmatch(cell) else cell for name, cell in row.items()}
        for row in csv.DictReader(io.StringIO(text, newline=""), strict=True)
    ]


def _parquet(path: Path, expected: int) -> list[dict[str, Any]]:
    # A small Parquet file may expand to any number of rows, so check the number first.
    if (count := pyarrow.parquet.read_metadata(path).num_rows) != expected:
        raise ValueError(f"it has {count} rows, but the run has {expected} measurements")
    return table.rows(pd.read_parquet(path))


def compare_page(found: RunRecords, recomputed: Sequence[Measurement]) -> Iterator[Difference | str]:
    """Yield the differences of the data block in report.html, or why it cannot be read."""
    path = locate(found.folder, REPORT)
    if path is None:
        yield f"{REPORT} is missing."
        return
    texts = _BLOCK.findall(path.read_text(encoding="utf-8", errors="replace"))
    if len(texts) != 1:
        yield f"{REPORT} contains {len(texts)} data blocks instead of 1."
        return
    try:
        parsed = json.loads(texts[0])
        stated, whole = packed.unpack(parsed), bool(parsed["whole"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        yield f"{REPORT}: the data block cannot be read: {type(error).__name__}: {str(error)[:200]}"
        return
    yield from compare(REPORT, stated, packed.unpack(page.content(found.with_distributions(recomputed), whole).block))
