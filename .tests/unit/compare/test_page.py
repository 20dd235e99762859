"""The page of a comparison: one offline file with the curves and tables of both sides."""

from __future__ import annotations

from dataclasses import replace

from builders.compared_runs import runs
from builders.report_data import HOSTILE
from builders.report_document import Document
from servemark.compare import page
from servemark.compare.compared import compare
from servemark.compare.metrics import METRICS


def test_page_holds_the_curves_of_both_sides_and_every_metric(archive, slower_archive):
    found = compare(archive.path, slower_archive.path)
    document = Document(page.render(found, bundle=""))
    curves = document.block["curves"]["panel-0"]["throughput"]
    assert {row["deployment"] for row in curves} == {"A: plain", "A: ray-tp2", "B: plain", "B: ray-tp2"}
    assert len(document.cells("points")) == 2 * len(METRICS)
    assert {tag for tag, _ in document.tags} & {"link", "iframe", "img"} == set()
    assert not any("src" in attributes or "http" in attributes.get("href", "") for _, attributes in document.tags)


def test_page_of_hostile_names_holds_no_element_of_theirs(folder):
    data = runs()
    host = data.machine.model_copy(update={"host": HOSTILE})
    document = Document(page.render(compare(folder(data), folder(replace(data, hardware=host))), bundle=""))
    assert "img" not in {tag for tag, _ in document.tags}


def test_page_lists_differences_and_points_of_one_side(folder):
    data = runs()
    machine = data.machine.model_copy(update={"driver": "1.2.3", "host": "node02"})
    found = compare(folder(runs(("equal-a", "slower"))), folder(replace(data, hardware=machine)))
    document = Document(page.render(found, bundle=""))
    assert len(document.cells("differences")) == len(found.record.differences) > 0
    assert len(document.cells("one-sided")) == len(found.record.one_sided) == 4
