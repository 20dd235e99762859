"""What the table's files state, cell by cell, against the table that the per-request results give."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow
import pyarrow.parquet

from servemark.report import table
from servemark.verification.contents import locate
from servemark.verification.differences import Difference, compare_rows

CSV, PARQUET = "measurements.csv", "measurements.parquet"
_FRACTION = re.compile(r"-?\d+\.\d+(e[-+]?\d+)?", re.ASCII)


def compare_csv(folder: Path, recomputed: pd.DataFrame, scratch: Path) -> tuple[list[Difference], list[str]]:
    """The differences of measurements.csv, and what is wrong with it as a file."""
    path = locate(folder, CSV)
    if path is None:
        return [], [f"{CSV} is missing."]
    # Written by the same function, so that what it does to text (formulas, carriage returns) is done to both.
    table.write_csv(recomputed, scratch / CSV)
    try:
        return _compare(CSV, _rows(path), _rows(scratch / CSV)), []
    except (csv.Error, ValueError) as error:
        return [], [f"{CSV} cannot be read: {error}"]


def _rows(path: Path) -> list[dict[str, Any]]:
    reader = csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"), newline=""), strict=True)
    return [{name: _value(text) for name, text in row.items()} for row in reader]


def _value(text: Any) -> Any:
    """A decimal fraction as a number, so that it reads as the other files' do; everything else as it stands."""
    return float(text) if isinstance(text, str) and _FRACTION.fullmatch(text) else text


def compare_parquet(folder: Path, recomputed: pd.DataFrame) -> tuple[list[Difference], list[str]]:
    """The differences of measurements.parquet, and what is wrong with it as a file."""
    path = locate(folder, PARQUET)
    if path is None:
        return [], [f"{PARQUET} is missing."]
    try:
        # Few bytes of Parquet may stand for any number of rows: they are counted before they are read.
        if (count := pyarrow.parquet.read_metadata(path).num_rows) != len(recomputed):
            return [], [f"{PARQUET} has {count} rows; {len(recomputed)} measurements were planned and recorded."]
        stated = table.rows(pd.read_parquet(path))
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        return [], [f"{PARQUET} cannot be read: {error}"]
    return _compare(PARQUET, stated, table.rows(recomputed)), []


def _compare(where: str, stated: list[dict[str, Any]], recomputed: list[dict[str, Any]]) -> list[Difference]:
    """``compare_rows`` without the columns that came after the stated table was written."""
    lacking = {name for name in table.LATER if not any(name in row for row in stated)}
    return compare_rows(
        where, stated, [{name: value for name, value in row.items() if name not in lacking} for row in recomputed]
    )
