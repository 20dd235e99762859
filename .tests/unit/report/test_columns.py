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
        assert shown == [table.terminal_number(row[column.name]) for column in columns.TERMINAL]


def test_table_of_medians_has_columns_of_groups(items, page):
    data, _ = items
    groups, headings, *lines = page["Medians of every load point"]
    lead = [cell for cell in groups if cell[1] == 1][:4]
    assert sum(span for _, span in groups[len(lead) :]) == len(headings) == len(columns.MEDIANS)
    assert [text for text, _ in headings] == [column.heading for column in columns.MEDIANS]
    assert [span for _, span in groups[len(lead) :]] == [len(group.columns) for group in columns.GROUPS]
    points = table.rows(table.aggregate(table.tidy(data.measurements)))
    for point, line in zip(points, lines, strict=True):
        for column, (text, _) in zip(columns.MEDIANS, line[len(lead) :], strict=True):
            assert text.startswith(formatting.number(point[f"{column.name}_median"])), column.name


def test_table_of_verdicts_has_values_of_csv(items, page):
    _, rows = items
    head, *lines = page["Every measurement with its verdict and reasons"]
    places = [[text for text, _ in head].index(f"{c.label} {c.unit}".strip()) for c in columns.VERDICTS]
    for row, line in zip(rows, lines, strict=True):
        shown = [line[place][0].replace("?", "") for place in places]
        assert shown == [formatting.number(row[column.name]) for column in columns.VERDICTS]


def test_point_without_accepted_repetition_spans_all_medians():
    data = report_data.troubled()
    groups, headings, *lines = Tables(render(data, bundle="")).found["Medians of every load point"]
    widths = {sum(span for _, span in line) for line in lines}
    assert widths == {sum(span for _, span in groups)} == {4 + len(headings)}
    assert any("INVALID" in line[-1][0] for line in lines)
