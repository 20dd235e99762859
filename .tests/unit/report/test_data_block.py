"""The data block of the report, from which its cells and plots are made."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from builders import report_data
from builders.report_document import Document
from servemark.report import page
from servemark.report.page import render


@pytest.fixture
def data():
    """A run with a VALID, a SUSPECT and an INVALID measurement."""
    items = [
        report_data.measurement("plain", 1),
        report_data.measurement("plain", 2).model_copy(update={"verdict": "SUSPECT"}),
        report_data.invalid("plain", concurrency=4),
    ]
    return replace(report_data.demo(), measurements=items, timelines={}, distributions=())


def test_report_contains_data_block(data):
    made = page.content(data).block
    assert Document(render(data, bundle="")).json(page.BLOCK_ID) == json.loads(json.dumps(made))


def test_data_block_has_measurements_with_verdict_and_reasons(data):
    made = page.content(data).block
    assert [(row["concurrency"], row["verdict"]) for row in made["measurements"]] == [
        (1, "VALID"), (2, "SUSPECT"), (4, "INVALID"),
    ]  # fmt: skip
    lost = made["measurements"][2]
    assert lost["output_tokens_per_s"] is None and lost["reasons"][0].startswith("requests_failed: ")
    assert made["verdicts"] == {"VALID": 1, "SUSPECT": 1, "INVALID": 1}


@pytest.mark.parametrize(
    ("section", "change"),
    [
        ("figures", lambda made: made["points"]["rows"][0].__setitem__(made["points"]["columns"].index("ttft_p99_ms_median"), 7654.3)),
        ("verdicts", lambda made: made["measurements"][0].update(ttft_p99_ms=7654.3)),
    ],
)  # fmt: skip
def test_cells_come_from_data_block(data, monkeypatch, section, change):
    real = page.content

    def changed(*arguments):
        content = real(*arguments)
        change(content.block)
        return content

    def shown():
        return [cell for row in Document(render(data, bundle="")).cells(section) for cell in row if "7 654" in cell]

    assert shown() == []
    monkeypatch.setattr(page, "content", changed)
    assert len(shown()) == 1


def test_plots_use_only_data_block():
    document = Document(render(report_data.demo(), bundle=""))
    specs = document.json("drawings")
    plots = [spec for panel in specs["panels"].values() for spec in panel.values()]
    plots += [*specs["distribution"].values(), *specs["timeline"].values(), specs["startup"]]
    assert len(plots) > 10 and all(spec["data"]["values"] == [] for spec in plots)
    made = document.block
    assert all(set(made["curves"][name]) == set(panel) for name, panel in specs["panels"].items())
    phases = specs["startup"]["layer"][0]["encoding"]["color"]["scale"]["domain"]
    assert {row["number"] for row in made["startup"]} == set(range(1, len(phases) + 1))
