"""What the page of a very large run shows: a bounded part, with every objection listed or counted."""

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


def test_a_page_of_3000_measurements_shows_a_part_and_names_the_files_with_all(large):
    html, page = large
    assert page.block["whole"] is False and len(page.block["points"]) == 300
    assert 'href="measurements.csv"' in html and 'href="measurements.parquet"' in html


def test_every_suspect_and_invalid_measurement_is_listed_and_counted(large):
    _, page = large
    found = page.cells("verdicts")
    counted, listed = ([row for row in found if len(row) == length] for length in (4, 9))
    assert [(row[0], *row[2:]) for row in counted] == [("requests_failed", "6", "6"), ("slow_start", "6", "6")]
    marks = [re.sub(r"\W", "", row[4]) for row in listed]
    assert (marks.count("SUSPECT"), marks.count("INVALID"), len(marks)) == (6, 6, 12)


def test_the_tables_show_two_load_points_of_each_deployment(large):
    _, page = large
    figures = page.cells("figures")
    assert len(figures) == 300
    assert {row[0] for row in figures} == {f"d{number:04d}" for number in range(150)}


def test_the_plots_show_the_best_deployments(large):
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
def test_a_page_is_thinned_above_a_number_of_measurements(monkeypatch, most, whole):
    monkeypatch.setattr(thinning, "WHOLE", most)
    page = Document(render(report_data.demo(), bundle=""))
    assert page.block["whole"] is whole
    rows = [row for row in page.cells("verdicts") if len(row) == 9]
    assert len(rows) == (12 if whole else 1), "12 measurements, of which one is SUSPECT"


def test_lightest_best_and_heaviest_load_of_each_deployment_stay(monkeypatch):
    monkeypatch.setattr(thinning, "POINTS", 12)
    found = medians(3, 40, 1)
    for point in found:
        point["output_tokens_per_s_median"] = 100.0 - abs(point["concurrency"] - 17)
    chosen = thinning.select(found, ["d0000", "d0001", "d0002"], whole=False)
    for deployment in ("d0000", "d0001", "d0002"):
        assert loads(chosen, deployment) == [1, 17, 20, 40]
        assert chosen.shows(next(p for p in found if (p["deployment"], p["concurrency"]) == (deployment, 17)))
        assert not chosen.shows(next(p for p in found if (p["deployment"], p["concurrency"]) == (deployment, 2)))


def test_as_many_loads_as_asked_stay_where_the_best_is_the_heaviest(monkeypatch):
    monkeypatch.setattr(thinning, "POINTS", 4)
    found = medians(2, 40, 1)
    for point in found:
        point["output_tokens_per_s_median"] = float(point["concurrency"])
    assert loads(thinning.select(found, ["d0000", "d0001"], whole=False), "d0001") == [1, 40]


def test_each_workload_has_its_best_deployments_in_the_plots(monkeypatch):
    monkeypatch.setattr(thinning, "SERIES", 2)
    found = medians(4, 1, 1, 10_000)
    for number, point in enumerate(found):
        point |= {"workload": "chat" if number < 2 else "long", "output_tokens_per_s_median": 1.0 + number}
    # d0003 is the best of one workload; of the other one d0001 is, though d0002 has more.
    assert thinning.select(found, ["d0000", "d0001", "d0002", "d0003"], whole=False).series == ["d0001", "d0003"]


def test_a_deployment_without_a_figure_is_in_no_plot():
    found = medians(2, 1, 1)
    assert thinning.select(found, ["d0001"], whole=False).series == ["d0001"]


def test_loads_that_no_plotted_deployment_has_have_no_distribution():
    items = report_data.sweep()
    items[0] = at_load(items[0], workload="only-plain")
    found = parts.distributions(items)
    chosen = replace(thinning.select([], [], whole=False), series=["ray-tp2"])
    left = chosen.distributions(found)
    assert "only-plain" in {item.workload for item in found} and "only-plain" not in {item.workload for item in left}
    assert all(set(bins.counts) == {"ray-tp2"} for item in left for bins in item.metrics.values())
    assert all(isinstance(item, distributions.Distribution) for item in left)


def test_of_many_gaps_the_first_are_listed_and_all_are_counted(monkeypatch):
    monkeypatch.setattr(thinning, "LISTED", 3)
    items = [report_data.invalid(repetition=number, reasons=(_reason(number),), concurrency=1) for number in range(1, 8)]
    data = replace(report_data.demo(), measurements=items, plans={"plain": report_data.plan("plain", tuple(items))})
    html = render(data, bundle="", whole=False)
    assert len(re.findall(r'<article class="gap" id="gap-\d+"', html)) == 3
    assert re.search(r"5 more gaps", html), "7 measurements, and a deployment that has none"
    rows = Document(html).cells("verdicts")
    assert [row[2] for row in rows if len(row) == 4] == ["7"] and len([row for row in rows if len(row) == 9]) == 3


def _reason(number: int):
    reason = report_data.invalid().reasons[0]
    return reason.model_copy(update={"detail": f"{number} of 32 requests failed."})


def test_of_each_load_point_the_most_uneven_repetition_is_shown():
    items = [report_data.measurement(repetition=number) for number in (1, 2, 3)]
    balance = [{"record": item, "imbalance": value} for item, value in zip(items, (1.0, 1.5, 1.2), strict=True)]
    points = views.medians(aggregate(tidy(items)))
    (row,) = thinning.select(points, ["plain"], whole=False).worst(balance)
    assert row["record"].load.repetition == 2
    assert len(thinning.select(points, ["plain"], whole=True).worst(balance)) == 3
