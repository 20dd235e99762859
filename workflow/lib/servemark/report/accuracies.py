"""Accuracy checks as rows: of accuracy.csv, and of the report."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from servemark.measurement import accuracy
from servemark.records import Accuracy
from servemark.records.restarts import configured
from servemark.report import table

COLUMNS = {
    "deployment": "string",
    "check": "string",
    "metric": "string",
    "accuracy": "float64",
    "accuracy_stderr": "float64",
    "minimum": "float64",
    "meets_minimum": "boolean",
    "examples": "Int64",
    "limit": "Int64",
    "shots": "Int64",
    "lm_eval": "string",
    "reason": "string",
    "key": "string",
}

Found = Mapping[str, Sequence[Accuracy]]


def rows(found: Found, minima: Mapping[str, Mapping[str, float]]) -> list[dict[str, Any]]:
    """Return one row for each accuracy check, by deployment.

    Args:
        found: by deployment, in the order of its checks.
        minima: as of ``measurement.accuracy.minima``.
    """
    return [
        {
            "deployment": name,
            "check": one.check.name,
            "metric": one.metric,
            "accuracy": one.value,
            "accuracy_stderr": one.stderr,
            "minimum": minima.get(configured(name), {}).get(one.check.name),
            "meets_minimum": accuracy.meets(one, minima),
            "examples": one.samples,
            "limit": one.check.limit,
            "shots": one.check.shots,
            "lm_eval": one.lm_eval,
            "reason": one.failure and one.failure.reason,
            "key": one.check.key,
        }
        for name in sorted(found)
        for one in found[name]
    ]


def csv_text(found: Found, minima: Mapping[str, Mapping[str, float]]) -> str:
    """Return accuracy.csv; arguments as of :func:`rows`."""
    values = [list(row.values()) for row in rows(found, minima)]
    return table.csv_text(pd.DataFrame(values, columns=list(COLUMNS)).astype(COLUMNS))
