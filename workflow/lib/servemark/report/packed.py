"""Write the rows of the data block in few bytes, and read them again."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

DIGITS = 10
"""Significant digits in the data block. The rounding is below the 1e-9 by which ``servemark verify`` lets two numbers differ."""


def pack(rows: Iterable[Mapping[str, Any]], names: Sequence[str] = ()) -> dict[str, Any]:
    """Return rows with each name stored once, and once also the names that have no value in any row (``empty``).

    Args:
        rows: have the same names.
        names: the names to keep. By default, those of the first row.
    """
    listed = list(rows)
    wanted = list(names or (listed[0] if listed else ()))
    filled = [name for name in wanted if any(row[name] is not None for row in listed)]
    empty = [name for name in wanted if name not in filled]
    return {"columns": filled, "rows": [[row[name] for name in filled] for row in listed], "empty": empty}


def unpack(value: Any) -> Any:
    """Return a JSON value with one dictionary per row for each of its tables. A table without ``empty`` has none.

    Raises:
        ValueError, TypeError: the rows of a table have other lengths than its columns, or are no lists.
    """
    if not isinstance(value, Mapping):
        return value
    if not {"columns", "rows"} <= value.keys() <= {"columns", "rows", "empty"}:
        return {name: unpack(part) for name, part in value.items()}
    empty = dict.fromkeys(value.get("empty", ()))
    return [{**empty, **dict(zip(value["columns"], row, strict=True))} for row in value["rows"]]


def rounded(value: Any) -> Any:
    """Return a JSON value with ``DIGITS`` significant digits in each of its numbers that have a fraction."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, Mapping):
        return {name: rounded(part) for name, part in value.items()}
    return [rounded(part) for part in value] if isinstance(value, (list, tuple)) else value
