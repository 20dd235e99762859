"""The archives of docs/benchmarks, the rows of their results, and the page that shows them."""

import csv
from pathlib import Path

from builders.paths import ROOT

ARCHIVES = ROOT / "docs/benchmarks/archives"
PAGE = (ROOT / "docs/benchmarks/index.md").read_text(encoding="utf-8")
START_UP_PAGE = (ROOT / "docs/explanation/start-up.md").read_text(encoding="utf-8")


def archive(name: str) -> Path:
    return ARCHIVES / f"{name}.tar.zst"


def rows(folder):
    """Return the rows of an unpacked archive's measurements.csv."""
    with (folder / "measurements.csv").open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def listed(values):
    return ", ".join(values)


RATIOS = {
    "total_throughput": "total tokens/s",
    "mean_ttft": "TTFT mean",
    "p95_ttft": "TTFT p95",
    "p50_tpot": "TPOT p50",
    "p95_tpot": "TPOT p95",
}
"""Metrics of the page's tables of ratios, and how they name them."""


def ratio_rows(found):
    """Return the rows of such a table. ``found``: the compared metrics of a load point by name."""
    compared = ((shown, found[name]) for name, shown in RATIOS.items())
    return [f"| {shown} | {one.ratio:.2f} | {one.low:.2f} to {one.high:.2f} | {one.verdict} |" for shown, one in compared]
