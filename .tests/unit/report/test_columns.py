"""The columns of CSV, Parquet, terminal and report."""

from __future__ import annotations

import csv
import io

import pytest

from builders import report_data
from builders.paths import FIXTURES
from builders.report_document import Tables
from servemark.report import columns, formatting, table
from servemark.report.page import render
from servemark.verification.unpack import unpacked


@pytest.fixture(scope="module")
def items():
    data = report_data.demo()
    return data, table.rows(table.tidy(data.measurements))


@pytest.fixture(scope="module")
def page(items):
    return Tables(render(items[0], bundle="")).found


def test_column_names_are_unique_and_only_results_are_summarised():
    assert len({column.name for column in columns.COLUMNS}) == len(columns.COLUMNS)
    assert {column.figure for column in columns.COLUMNS if column.label} == {True}
    assert set(columns.MEDIANS) | set(columns.VERDICTS) | set(columns.TERMINAL) <= {column for column in columns.COLUMNS if column.label}


def test_columns_of_earlier_archive_still_exist():
    with unpacked(FIXTURES / "archives" / "h200x4-tp4.tar.zst") as archive:
        names = next(csv.reader(io.StringIO((archive.folder / "measurements.csv").read_text())))
    assert set(names) <= set(table.SCHEMA)


def test_terminal_shows_values_of_csv(items):
    data, rows = items
    upper, lower, *lines = table.text_table(table.tidy(data.measurements)).splitlines()
    heads = zip(upper.removeprefix("latencies in ms").split(), lower.split("rep")[1].split(), strict=True)
    assert [" ".join(head) for head in heads] == [column.terminal for column in columns.TERMINAL]
    assert {"TTFT mean", "TTFT p50", "TTFT p95", "TTFT p99"} <= {column.terminal for column in columns.TERMINAL}
    for row, line in zip(rows, lines, strict=False):
        shown = line.replace("?", "").split()[-len(columns.TERMINAL) :]
        values = [row[column.name] for column in columns.TERMINAL]
        assert shown == ["few" if value is None else table.terminal_number(value) for value in values]


def test_table_of_medians_has_both_parts_of_each_load(items, page):
    data, _ = items
    groups, headings, *lines = page["Medians of every load point"]
    lead = [cell for cell in groups if cell[1] == 1][:5]
    assert sum(span for _, span in groups[len(lead) :]) == len(headings)
    names = [None, None, None, *(column.name for column in columns.MEDIANS)]
    # The peak is the last throughput.
    names.insert(6, None)
    assert [text for text, _ in headings[:3]] == ["count", "in flight", "most"]
    points = table.rows(table.aggregate(table.tidy(data.measurements)))
    assert len(lines) == 2 * len(points)
    for number, line in enumerate(lines):
        point, prefix = points[number // 2], ("steady_", "")[number % 2]
        # The first cells span both rows.
        line = line if prefix else [*lead[:4], *line]
        assert line[4][0] == ("steady state", "whole run")[number % 2]
        assert line[5][0] == formatting.count(point["steady_requests_median" if prefix else "ttft_count_median"])
        for name, (text, _) in zip(names, line[len(lead) :], strict=True):
            if name:
                value = point[f"{prefix}{name}_median"]
                assert text.startswith("too few" if value is None else formatting.number(value)), name


def test_table_of_verdicts_has_values_of_csv(items, page):
    _, rows = items
    head, *lines = page["Every measurement with its verdict and reasons"]
    heads = [f"{c.label}{'' if c.since > 1 else ', whole run'} {c.unit}".strip() for c in columns.VERDICTS]
    assert {"Output tokens/s, steady state", "Output tokens/s, whole run"} < set(heads)
    places = [[text for text, _ in head].index(name) for name in heads]
    for row, line in zip(rows, lines, strict=True):
        shown = [line[place][0].replace("?", "") for place in places]
        values = [row[column.name] for column in columns.VERDICTS]
        assert shown == ["too few" if value is None else formatting.number(value) for value in values]


def test_point_without_accepted_repetition_spans_all_medians():
    data = report_data.troubled()
    groups, headings, *lines = Tables(render(data, bundle="")).found["Medians of every load point"]
    # The first four cells of a load span its two rows.
    widths = {sum(span for _, span in line) + (4 if line[0][0] == "whole run" else 0) for line in lines}
    assert widths == {sum(span for _, span in groups)} == {5 + len(headings)}
    assert any("INVALID" in line[-1][0] for line in lines)
