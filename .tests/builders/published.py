"""The published archives of docs/benchmarks, their rows, and the page that shows them."""

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
