"""The data block of an archive's report is compared with the per-request results."""

from __future__ import annotations

import json
import re

import pytest

from builders.archived_run import wrong
from servemark.archive import crate
from servemark.report import packed, thinning
from servemark.report import page as report_page

PLAIN = 2
"""Index of the row of ``plain`` at concurrency 1. ``broken`` comes first, and each deployment has two loads."""


def point(data, column):
    """Return the row of ``plain`` at concurrency 1 in the table of points, and the position of a column."""
    table = data["points"]
    assert table["rows"][PLAIN][:3] == ["plain", "chat", 1]
    return table["rows"][PLAIN], table["columns"].index(column)


def set_point(data, column, value):
    row, place = point(data, column)
    row[place] = value


def measured(data, position=4):
    """Return the first repetition of ``plain`` at concurrency 1."""
    row = data["measurements"][position]
    assert (row["deployment"], row["concurrency"], row["repetition"]) == ("plain", 1, 1)
    return row


def set_curve(data, metric, name, value):
    """Change the first row of a curve."""
    table = data["curves"]["panel-0"][metric]
    table["rows"][0][table["columns"].index(name)] = value


def set_first(values, value):
    values[0] = value


def bins(data):
    """Return the bins of TTFT at the first load."""
    return data["distributions"][0]["ttft"]


@pytest.mark.parametrize(
    ("change", "path", "stated"),
    [
        (lambda data: set_point(data, "output_tokens_per_s_median", 99999), "points: plain chat 1: output_tokens_per_s_median", "99999"),
        (lambda data: set_point(data, "ttft_p99_ms_max", None), "points: plain chat 1: ttft_p99_ms_max", "nothing"),
        (lambda data: set_point(data, "verdict", "SUSPECT"), "points: plain chat 1: verdict", "SUSPECT"),
        (lambda data: data["points"]["rows"].pop(PLAIN), "points: number of entries", "5"),
        (lambda data: measured(data).update(verdict="SUSPECT"), "measurements: plain chat 1 1: verdict", "SUSPECT"),
        (lambda data: measured(data).update(ttft_p99_ms=1.5), "measurements: plain chat 1 1: ttft_p99_ms", "1.5"),
        (lambda data: measured(data)["reasons"].append("x"), "measurements: plain chat 1 1: reasons: number of entries", "1"),
        (lambda data: set_first(data["measurements"][0]["reasons"], "x"), "measurements: broken chat 1 1: reasons: 0", "x"),
        (lambda data: data["measurements"].pop(), "measurements: number of entries", "11"),
        (lambda data: data["verdicts"].update(VALID=7), "verdicts: VALID", "7"),
        (lambda data: data["reasons"][0].update(measurements=9), "reasons: server_exited: measurements", "9"),
        (lambda data: set_curve(data, "e2el", "p50", 1.5), "curves: panel-0: e2el: plain 1 1: p50", "1.5"),
        (lambda data: data["curves"]["panel-0"]["ttft"]["rows"].pop(), "curves: panel-0: ttft: number of entries", "7"),
        (lambda data: set_first(bins(data)["counts"]["plain"], 77), "distributions: 0: ttft: counts: plain: 0", "77"),
        (lambda data: set_first(bins(data)["edges"], 0.015), "distributions: 0: ttft: edges: 0", "0.015"),
        (lambda data: data["timelines"][0].update(samples=99), "timelines: plain chat 1 1: samples", "99"),
        (lambda data: set_first(data["timelines"][0]["columns"]["seconds"], 4.5), "timelines: plain chat 1 1: columns: seconds: 0", "4.5"),
        (lambda data: data["startup"][0].update(seconds=1.5), "startup: ray-tp2 1: seconds", "1.5"),
        (lambda data: data.pop("curves"), "curves", "not there"),
        (lambda data: data.update(more=1), "more", "1"),
    ],
)  # fmt: skip
def test_changed_value_of_data_block_is_named(run, change, path, stated):
    run.edit_block(change)
    (line,) = wrong(run.seal())
    assert line.startswith(f"{path}: stated {stated}, recomputed ") and line.endswith(" (report.html)")


@pytest.mark.parametrize("text", ["", "[]", "{}", "[" * 100_000, '{"points": {"columns": ["a"], "rows": [[1, 2]]}}'])
def test_unreadable_data_block_is_named(run, text):
    replaced = re.compile(f'(id="{report_page.BLOCK_ID}">).*?(</script>)', re.DOTALL)
    run.edit("report.html", lambda page: replaced.sub(lambda found: found[1] + text + found[2], page))
    (line,) = wrong(run.seal())
    assert line.startswith("report.html:")


def test_report_without_one_data_block_is_named(run):
    page = (run.folder / "report.html").read_text()
    own = re.search(f'<script [^>]*id="{report_page.BLOCK_ID}">.*?</script>', page, re.DOTALL)[0]
    for text, count in (("", 0), (own + own, 2)):
        run.write("report.html", page.replace(own, text))
        (line,) = wrong(run.seal())
        assert line.startswith("report.html") and str(count) in line


def test_thinned_report_is_compared_with_thinned_data(run, monkeypatch):
    with monkeypatch.context() as patch:
        for limit in ("WHOLE", "POINTS", "SERIES"):
            patch.setattr(thinning, limit, 1)
        run.report()
        assert wrong(run.seal()) == []
        run.edit_block(lambda data: data["verdicts"].update(VALID=7))
        assert wrong(run.seal()) == ["verdicts: VALID: stated 7, recomputed 6 (report.html)"]


def test_whole_report_is_compared_with_whole_data(run, monkeypatch):
    monkeypatch.setattr(thinning, "WHOLE", 1)
    assert wrong(run.seal()) == []


def test_name_missing_in_older_data_block_is_not_checked(run, monkeypatch):
    monkeypatch.setattr(crate, "__version__", "0.0.9")
    run.edit_block(lambda data: measured(data).pop("ttft_p99_ms"))
    assert wrong(run.seal()) == []
    run.edit_block(lambda data: data["measurements"].pop())
    assert len(wrong(run.seal())) == 1 and wrong(run.path)[0].startswith("measurements: number of entries:")


def test_data_block_is_json(run):
    text = re.search(f'id="{report_page.BLOCK_ID}">(.*?)</script>', (run.folder / "report.html").read_text(), re.DOTALL)[1]
    data = packed.unpack(json.loads(text))
    assert {row["verdict"] for row in data["points"]} == {"VALID", "SUSPECT", "INVALID"}
    assert [row["deployment"] for row in data["measurements"]] == ["broken"] * 4 + ["plain"] * 4 + ["ray-tp2"] * 4
