"""Rows of the data block in few bytes."""

from __future__ import annotations

import json

import pytest

from builders import report_data_large
from servemark.report import packed, page
from servemark.verification import table_and_report

ROWS = [{"load": 1, "p50": 0.1, "p99": None, "why": ""}, {"load": 2, "p50": None, "p99": None, "why": "x"}]


def test_rows_come_back_with_names_that_have_no_value():
    table = packed.pack(ROWS)
    assert table == {"columns": ["load", "p50", "why"], "rows": [[1, 0.1, ""], [2, None, "x"]], "empty": ["p99"]}
    assert packed.unpack({"curves": {"panel-0": table}, "whole": True}) == {"curves": {"panel-0": ROWS}, "whole": True}


def test_table_of_an_older_report_is_read():
    assert packed.unpack({"points": {"columns": ["a", "b"], "rows": [[1, None]]}}) == {"points": [{"a": 1, "b": None}]}
    older = {"curves": {"panel-0": {"ttft": ROWS}}}
    assert packed.unpack(older) == older


def test_only_named_columns_are_kept_and_no_rows_are_a_table():
    assert packed.pack(ROWS, ("load",))["columns"] == ["load"]
    assert packed.unpack(packed.pack([])) == []
    assert packed.unpack(packed.pack([], ("load",))) == []


@pytest.mark.parametrize("rows", [[[1, 2]], [1], 1])
def test_damaged_table_is_refused(rows):
    with pytest.raises((ValueError, TypeError)):
        packed.unpack({"columns": ["a"], "rows": rows})


def test_rounded_numbers_are_the_same_for_verify_and_counts_stay():
    values = {"a": [654.7334206995037, 1 / 3, 1.0000000005, 123456789012.75], "b": (12345678901, True, None, "1.23456789012345")}
    found = packed.rounded(values)
    assert list(table_and_report.compare("report.html", found, values)) == []
    assert found["a"][0] == 654.7334207 and found["b"] == [12345678901, True, None, "1.23456789012345"]


def test_data_block_has_no_longer_numbers():
    block = json.loads(json.dumps(page.content(report_data_large.large(2, 3, 3)).block))
    assert block == packed.rounded(block)
    assert any(isinstance(value, float) for row in block["points"]["rows"] for value in row)
