"""A deployment with several starts is one deployment in table and report."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builders import report_data_repeated
from builders.report_document import Document
from servemark.report import table
from servemark.report.page import render

RESULTS = ("figures", "comparison", "verdicts")


@pytest.fixture(scope="module")
def data():
    return report_data_repeated.repeated()


@pytest.fixture(scope="module")
def divided(data):
    """Return the same results, with the third repetition of ``equal-a`` measured by another start."""
    moved = [
        item.model_copy(update={"deployment": "equal-a+1", "load": item.load.model_copy(update={"restart": 1})})
        if (item.deployment, item.load.repetition) == ("equal-a", 3)
        else item
        for item in data.measurements
    ]
    plan = data.plans["equal-a"]
    first, second = (
        plan.model_copy(
            update={"deployment": name, "points": tuple(point for point in plan.points if (point.load.repetition == 3) is third)}
        )
        for name, third in (("equal-a", False), ("equal-a+1", True))
    )
    return replace(data, measurements=moved, plans={**data.plans, "equal-a": first, "equal-a+1": second})


def test_repetitions_of_all_starts_are_aggregated_together(data, divided):
    alone, together = (table.aggregate(table.tidy(run.measurements)) for run in (data, divided))
    assert together.equals(alone)
    assert set(table.tidy(divided.measurements)["restart"]) == {0, 1}


def test_report_shows_the_same_results_and_names_no_start_among_them(data, divided):
    alone, together = (Document(render(run, bundle="")) for run in (data, divided))
    for section in RESULTS:
        assert together.cells(section) == alone.cells(section), section
    assert "equal-a+1" not in together.text.partition("Comparison")[0]
    assert "Not compared, because no other deployment has the same number" not in together.text
