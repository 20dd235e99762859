"""What the archive's table and report state of the measurements, against what the per-request results give.

The report's cells and plots are made of its block of data (:mod:`servemark.report.block`). They are not compared: whoever changes them
alone also has to change the manifest, whose sha256 is the archive's identity.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow
import pyarrow.parquet

from servemark.records import Measurement
from servemark.report import block, table
from servemark.report.data import RunRecords, locate
from servemark.verification.differences import Difference, compare, compare_rows

CSV, PARQUET, REPORT = "measurements.csv", "measurements.parquet", "report.html"
_FRACTION = re.compile(r"-?\d+\.\d+(e[-+]?\d+)?", re.ASCII)
_BLOCK = re.compile(rf'<script type="application/json" id="{block.ID}">(.*?)</script>', re.DOTALL)


def compare_tables(folder: Path, recomputed: pd.DataFrame) -> Iterator[Difference | str]:
    """Yield the differences of measurements.csv and measurements.parquet, and what is wrong with them as files."""
    for name in (CSV, PARQUET):
        path = locate(folder, name)
        if path is None:
            yield f"{name} is missing."
            continue
        # Both texts by the same function, so that what it does to formulas and carriage returns is done to both.
        expected = _csv(table.csv_text(recomputed)) if name == CSV else table.rows(recomputed)
        try:
            stated = _csv(path.read_text(encoding="utf-8")) if name == CSV else _parquet(path, len(expected))
        except (csv.Error, pyarrow.ArrowException, OSError, ValueError) as error:
            yield f"{name} cannot be read: {error}"
            continue
        yield from compare_rows(name, stated, expected)


def _csv(text: str) -> list[dict[str, Any]]:
    """Return the rows with decimal fractions as numbers, so that they read as the other files' do; everything else as it stands."""
    return [
        {name: float(cell) if isinstance(cell, str) and _FRACTION.fullmatch(cell) else cell for name, cell in row.items()}
        for row in csv.DictReader(io.StringIO(text, newline=""), strict=True)
    ]


def _parquet(path: Path, expected: int) -> list[dict[str, Any]]:
    # Few bytes of Parquet may stand for any number of rows: they are counted before they are read.
    if (count := pyarrow.parquet.read_metadata(path).num_rows) != expected:
        raise ValueError(f"it has {count} rows, and {expected} measurements were planned and recorded")
    return table.rows(pd.read_parquet(path))


def compare_page(found: RunRecords, recomputed: Sequence[Measurement]) -> Iterator[Difference | str]:
    """Yield the differences of the block in report.html, and what is wrong with it."""
    path = locate(found.folder, REPORT)
    if path is None:
        yield f"{REPORT} is missing."
        return
    texts = _BLOCK.findall(path.read_text(encoding="utf-8", errors="replace"))
    if len(texts) != 1:
        yield f"{REPORT} holds {len(texts)} blocks of data; it must hold one."
        return
    try:
        parsed = json.loads(texts[0])
        stated, whole = block.expanded(parsed), bool(parsed["whole"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        yield f"{REPORT}: its block of data cannot be read: {type(error).__name__}: {str(error)[:200]}"
        return
    yield from compare(REPORT, stated, block.expanded(block.content(found.with_distributions(recomputed), whole).block))
