"""The generated reference pages name everything that the code has."""

from __future__ import annotations

import argparse
import re

from builders.paths import ROOT
from servemark.cli import reference_pages
from servemark.records import ALL_RECORDS
from servemark.report.columns import COLUMNS


def test_the_pages_are_the_generated_ones():
    for name, text in reference_pages.texts().items():
        assert (ROOT / reference_pages.FOLDER / name).read_text() == text, "run servemark generate"


def test_every_column_has_a_meaning():
    assert [column.name for column in COLUMNS if not column.meaning] == []


def test_every_record_and_every_field_has_a_row():
    page = reference_pages.records()
    for record in ALL_RECORDS:
        part = page.partition(f"## {record.KIND}\n")[2].partition("\n## ")[0]
        assert re.findall(r"^\| `(\w+)` \| .+ \|", part, re.MULTILINE) == list(record.model_fields)


def test_a_command_shows_its_arguments():
    parser = argparse.ArgumentParser(prog="tool")
    one = parser.add_subparsers().add_parser("look", help="look at a file")
    one.add_argument("file")
    one.add_argument("-o", "--output", help="where | to")
    one.add_argument("--json", action="store_true", help="as JSON")
    page = reference_pages.command_line(parser)
    assert "## tool look\n\nLook at a file.\n\n    tool look FILE [--output OUTPUT] [--json]\n" in page
    assert "| `--output OUTPUT` | where \\| to |" in page
