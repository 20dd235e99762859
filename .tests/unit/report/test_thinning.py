"""The report of a large run shows a bounded part and lists or counts every objection."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from builders import report_data, report_data_large
from builders import report_data_parts as parts
from builders.loads import at_load
from builders.report_document import Document
from servemark.report import distributions, thinning, views
from servemark.report.page import render
from servemark.report.table import aggregate, tidy


@pytest.fixture(scope="module")
def large() -> tuple[str, Document]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(thinning, "POINTS", 300)
        html = render(report_data_large.large(150, 10, 2))
    return html, Document(html)


def medians(*shape: int) -> list[dict]:
    return views.medians(aggregate(tidy(report_data_large.measurements(*shape))))


def loads(selection: thinning.Selection, deployment: str) -> list[int]:
    return [point["concurrency"] for point in selection.points if point["deployment"] == deployment]


def test_thinned_report_links_files_with_all_measurements(large):
    html, page = large
    assert page.block["whole"] is False and len(page.block["points"]) == 300
    assert 'href="measurements.csv"' in html and 'href="measurements.parquet"' in html


def test_suspect_and_invalid_measurements_are_listed_and_counted(large):
    _, page = large
    found = page.cells("verdicts")
    counted, listed = ([row for row in found if len(row) == length] for length in (4, 12))
    assert [(row[0], *row[2:]) for row in counted] == [("requests_failed", "6", "6"), ("slow_start", "6", "6")]
    marks = [re.sub(r"\W", "", row[4]) for row in listed]
    assert (marks.count("SUSPECT"), marks.count("INVALID"), len(marks)) == (6, 6, 12)


def test_thinned_tables_show_two_points_of_each_deployment(large):
    _, page = large
    figures = page.cells("figures")
    assert len(figures) == 600, "two load points of 150 deployments: steady state and whole run"
    assert {row[0] for row in figures} - {"whole run"} == {f"d{number:04d}" for number in range(150)}


def test_thinned_plots_show_best_deployments(large):
    _, page = large
    series = page.json("drawings")["series"]
    assert len(series) == thinning.SERIES and series == sorted(series)
    rows = page.block["curves"]["panel-0"]["throughput"]
    assert {row["deployment"] for row in rows} == set(series)
    assert 0 < len(rows) <= thinning.DRAWN
    assert {row["deployment"] for row in page.block["startup"]} == set(series)
    assert {point["deployment"] for point in page.block["timelines"]} <= set(series)
    shown = [set(bins["counts"]) for load in page.block["distributions"] for bins in load.values()]
    assert shown and all(names <= set(series) for names in shown)


@pytest.mark.parametrize(("most", "whole"), [(12, True), (11, False)])
def test_report_is_thinned_above_limit(monkeypatch, most, whole):
    monkeypatch.setattr(thinning, "WHOLE", most)
    page = Document(render(report_data.demo(), bundle=""))
    assert page.block["whole"] is whole
    rows = [row for row in page.cells("verdicts") if len(row) == 12]
    assert len(rows) == (12 if whole else 1), "12 measurements, of which one is SUSPECT"


def test_thinned_tables_keep_lightest_best_and_heaviest_load(monkeypatch):
    monkeypatch.setattr(thinning, "POINTS", 12)
    found = medians(3, 40, 1)
    for point in found:
        point["output_tokens_per_s_median"] = 100.0 - abs(point["concurrency"] - 17)
    chosen = thinning.select(found, ["d0000", "d0001", "d0002"], whole=False)
    for deployment in ("d0000", "d0001", "d0002"):
        assert loads(chosen, deployment) == [1, 17, 20, 40]
        assert chosen.shows(next(p for p in found if (p["deployment"], p["concurrency"]) == (deployment, 17)))
        assert not chosen.shows(next(p for p in found if (p["deployment"], p["concurrency"]) == (deployment, 2)))


def test_thinned_tables_keep_limit_if_best_load_is_heaviest(monkeypatch):
    monkeypatch.setattr(thinning, "POINTS", 4)
    found = medians(2, 40, 1)
    for point in found:
        point["output_tokens_per_s_median"] = float(point["concurrency"])
    assert loads(thinning.select(found, ["d0000", "d0001"], whole=False), "d0001") == [1, 40]


def test_thinned_plots_show_best_deployments_of_each_workload(monkeypatch):
    monkeypatch.setattr(thinning, "SERIES", 2)
    found = medians(4, 1, 1, 10_000)
    for number, point in enumerate(found):
        point |= {"workload": "chat" if number < 2 else "long", "output_tokens_per_s_median": 1.0 + number}
    # d0003 is the best of workload long and d0001 of chat, although d0002 (long) has more than d0001.
    assert thinning.select(found, ["d0000", "d0001", "d0002", "d0003"], whole=False).series == ["d0001", "d0003"]


def test_deployment_without_result_is_in_no_plot():
    found = medians(2, 1, 1)
    assert thinning.select(found, ["d0001"], whole=False).series == ["d0001"]


def test_thinned_distributions_hold_only_plotted_deployments():
    items = report_data.sweep()
    items[0] = at_load(items[0], workload="only-plain")
    found = parts.distributions(items)
    chosen = replace(thinning.select([], [], whole=False), series=["ray-tp2"])
    left = chosen.distributions(found)
    assert "only-plain" in {item.workload for item in found} and "only-plain" not in {item.workload for item in left}
    assert all(set(bins.counts) == {"ray-tp2"} for item in left for bins in item.metrics.values())
    assert all(isinstance(item, distributions.Distribution) for item in left)


def test_first_gaps_are_listed_and_all_counted(monkeypatch):
    monkeypatch.setattr(thinning, "LISTED", 3)
    items = [report_data.invalid(repetition=number, reasons=(_reason(number),), concurrency=1) for number in range(1, 8)]
    data = replace(report_data.demo(), measurements=items, plans={"plain": report_data.plan("plain", tuple(items))})
    html = render(data, bundle="", whole=False)
    assert len(re.findall(r'<article class="gap" id="gap-\d+"', html)) == 3
    assert re.search(r"5 more gaps", html), "7 measurements and a deployment without any"
    rows = Document(html).cells("verdicts")
    assert [row[2] for row in rows if len(row) == 4] == ["7"] and len([row for row in rows if len(row) == 12]) == 3


def _reason(number: int):
    reason = report_data.invalid().reasons[0]
    return reason.model_copy(update={"detail": f"{number} of 32 requests failed."})
