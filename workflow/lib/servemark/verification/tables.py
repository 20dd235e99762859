"""What the files of the table state, cell by cell, against the table that the per-request results give."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow
import pyarrow.parquet

from servemark.report import table
from servemark.report.gather import locate
from servemark.verification.differences import Difference, compare_rows

CSV, PARQUET = "measurements.csv", "measurements.parquet"
_FRACTION = re.compile(r"-?\d+\.\d+(e[-+]?\d+)?", re.ASCII)


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
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    return [{name: _value(text) for name, text in row.items()} for row in reader]


def _value(text: Any) -> Any:
    """Return a decimal fraction as a number, so that it reads as the other files' do; everything else as it stands."""
    return float(text) if isinstance(text, str) and _FRACTION.fullmatch(text) else text


def _parquet(path: Path, expected: int) -> list[dict[str, Any]]:
    # Few bytes of Parquet may stand for any number of rows: they are counted before they are read.
    if (count := pyarrow.parquet.read_metadata(path).num_rows) != expected:
        raise ValueError(f"it has {count} rows, and {expected} measurements were planned and recorded")
    return table.rows(pd.read_parquet(path))
