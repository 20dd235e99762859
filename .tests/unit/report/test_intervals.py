"""Intervals and marks of precision in table, report and terminal."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from builders import report_data, report_data_repeated
from builders.report_document import Document
from servemark.measurement.intervals import Interval
from servemark.report import comparable, packed, page, table, terminal
from servemark.report.page import render


@pytest.fixture(scope="module")
def data():
    return report_data_repeated.repeated()


@pytest.fixture(scope="module")
def text(data):
    return render(data, bundle="")


def points(measurements):
    return table.rows(table.aggregate(table.tidy(measurements)))


def test_each_result_has_the_interval_of_its_repetitions():
    values = {"output_tokens_per_s": [800.0, 820.0, 850.0], "ttft_p50_ms": [20.0, 21.0, 25.0]}
    (point,) = points([
        report_data.measurement(repetition=number, output=output, ttft=ttft)
        for number, (output, ttft) in enumerate(zip(*values.values(), strict=True), 1)
    ])  # fmt: skip
    for column, repetitions in values.items():
        expected = Interval.of(repetitions)
        assert point[f"{column}_low"] == pytest.approx(float(expected.low)), column
        assert point[f"{column}_high"] == pytest.approx(float(expected.high)), column
        assert point[f"{column}_repetitions"] == 3


def test_fewer_than_three_values_of_a_column_have_no_interval():
    items = [report_data.measurement(repetition=number, output=800.0 + number) for number in (1, 2, 3)]
    items[2] = items[2].model_copy(update={"itl_ms": None})
    (point,) = points([*items, report_data.invalid(repetition=4, concurrency=8)])
    assert (point["itl_p50_ms_repetitions"], point["itl_p50_ms_low"]) == (2, None)
    assert (point["ttft_p50_ms_repetitions"], point["output_tokens_per_s_low"] is not None) == (3, True)


def test_result_of_zero_has_no_interval():
    (point,) = points(
        [report_data.measurement(repetition=number, output_throughput=value) for number, value in ((1, 0.0), (2, 8.0), (3, 9.0))]
    )
    assert (point["output_tokens_per_s_low"], point["output_tokens_per_s_high"]) == (None, None)
    assert point["output_tokens_per_s_median"] == 8.0 and point["output_tokens_per_s_repetitions"] == 3


def test_data_block_has_intervals_of_each_load_point(data):
    made = packed.unpack(page.content(data).block)
    assert [row["deployment"] for row in made["intervals"]] == [row["deployment"] for row in made["points"]]
    first, last = made["intervals"][0], made["intervals"][-1]
    assert first["output_tokens_per_s_low"] < made["points"][0]["output_tokens_per_s_median"] < first["output_tokens_per_s_high"]
    assert (last["workload"], last["output_tokens_per_s_low"], last["output_tokens_per_s_repetitions"]) == ("twice", None, 2)


def test_tables_show_intervals_and_say_where_there_is_none(text):
    by_place = {tuple(cell.replace("\u00a0", " ") for cell in row[:3]): row for row in Document(text).cells("figures")}
    assert re.search(r"\[[\d\s]+, [\d\s]+\]", by_place["equal-a", "chat", "concurrency 8"][8])
    twice = by_place["equal-a", "twice", "concurrency 8"]
    assert "2/2" in twice[3] and "no interval" in twice[3] and "[" not in "".join(twice)


def test_each_number_of_a_rounding_deployment_is_marked(data, text):
    assert comparable.rounded(data) == {"fp8-cache": "options.kv-cache-dtype: fp8"}
    document = Document(text)
    found = 0
    # The first column with a result of the requests; counts and concurrency before it have no mark.
    for section, first in (("figures", 8), ("comparison", 3), ("verdicts", 6)):
        deployment = ""
        for row in document.cells(section):
            whole_run = row[0] == "whole run"
            deployment = deployment if whole_run else row[0]
            results = row[5:] if whole_run else row[first:]
            marked = ["*" in cell for cell in results if re.match(r"[\d\u202f.]+(\*|$|\[)", cell) and "/" not in cell]
            assert all(marked) if deployment == "fp8-cache" else not any(marked), (section, row)
            found += len(marked)
    assert found > 100, "the pattern finds numbers"
    assert text.count("calculates in fewer bits") == 5, "headline, curves, comparison, all results, targets"


def test_terminal_marks_rounding_and_states_intervals(data):
    first, second = terminal.results(data).split("\n\n")
    lines = {tuple(line.split()[:4]): line for line in first.splitlines()}
    assert lines["fp8-cache", "chat", "c=8", "1"].count("*") == len(table.TERMINAL)
    assert "*" not in lines["slower", "chat", "c=8", "1"] and "kv-cache-dtype: fp8" in first
    medians = {tuple(line.split()[:3]): line for line in second.splitlines()}
    assert medians["slower", "chat", "c=8"].endswith("0.88 different") and " to " in medians["slower", "chat", "c=8"]
    assert medians["equal-a", "chat", "c=8"].endswith("no difference shown")
    assert medians["slower", "twice", "c=8"].endswith("cannot tell (2 repetitions)") and "no interval" in medians["slower", "twice", "c=8"]
    assert "*" in medians["fp8-cache", "chat", "c=8"] and medians["fp8-cache", "chat", "c=8"].endswith("not compared")
    assert max(len(line) for line in (*first.splitlines(), *second.splitlines())) <= table.WIDTH


def test_single_repetitions_have_no_table_of_medians():
    one = replace(report_data.demo(), measurements=[report_data.measurement()])
    assert terminal.results(one) == table.text_table(table.tidy(one.measurements))


def test_long_names_fit_the_terminal():
    names = ["deployment-with-a-very-long-name-" + letter * 60 for letter in "ab"]
    items = [report_data.measurement(name, 8, number, workload="w" * 90) for name in names for number in (1, 2)]
    plans = {name: report_data.plan(name, tuple(item for item in items if item.deployment == name)) for name in names}
    made = terminal.results(replace(report_data.demo(), measurements=items, plans=plans))
    assert max(map(len, made.splitlines())) <= table.WIDTH
