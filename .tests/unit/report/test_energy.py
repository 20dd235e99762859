"""GPU energy, its cost, and the load of other processes in table and report."""

from __future__ import annotations

import statistics
from dataclasses import replace

import pytest

from builders import report_data
from builders import report_data_parts as parts
from builders.report_document import Document
from servemark.config.prices import Prices
from servemark.records import TelemetryTimeline
from servemark.report import energy, page, table, timelines, views
from servemark.report.page import render

EUROS = {"gpu_hour": 2.5, "kwh": 0.3, "currency": "EUR"}


def run(accelerator: str = "cuda", prices: dict | None = None, **telemetry):
    """Return the demonstration, with its first deployment alone having telemetry."""
    data = report_data.demo()
    found = parts.cpu_telemetry(0.5) if accelerator == "cpu" else parts.gpu_telemetry(**telemetry)
    items = [item.model_copy(update={"telemetry": found}) if item.deployment == "plain" else item for item in data.measurements]
    machine = data.machine.model_copy(update={"accelerator": accelerator})
    return replace(data, measurements=items, hardware=machine, config={**data.config, "prices": prices})


def rows(data):
    return energy.rows(views.medians(table.aggregate(table.tidy(data.measurements))), data)


def test_energy_is_that_of_all_gpus_per_output_token():
    data = run(gpus=2)
    (row, *_) = table.rows(table.tidy(data.measurements))
    item = data.measurements[0]
    joules = 2 * 400.0 * 100.0 / item.total_output_tokens
    assert row["gpu_energy_j_per_output_token"] == pytest.approx(joules)
    assert row["gpu_kwh_per_million_tokens"] == pytest.approx(joules / 3.6)
    assert (row["gpu_power_w"], row["gpu_sm_clock_mhz"], row["gpus_allocated"], row["gpus_idle"]) == (800.0, 1500.0, 2, None)
    lost = item.model_copy(update={"verdict": "INVALID"})
    assert table.rows(table.tidy([lost]))[0]["gpu_power_w"] is None


def test_gpus_without_work_are_named():
    data = run(gpus=2, busy_max=0.0)
    assert table.rows(table.tidy(data.measurements))[0]["gpus_idle"] == "gn01:0 gn01:1"
    assert {tuple(row["idle"]) for row in rows(data)} == {("gn01:0", "gn01:1")}


def test_cost_is_gpu_hours_and_energy_per_million_tokens():
    data = run(gpus=4, prices=EUROS)
    item = data.measurements[0]
    hours, kwh = 4 * item.duration_s / 3600, 4 * 400.0 * 100.0 / 3.6e6
    expected = (hours * 2.5 + kwh * 0.3) / item.total_output_tokens * 1e6
    assert energy.cost_per_million(item, Prices(**EUROS)) == pytest.approx(expected)
    costs = {(row["workload"], row["concurrency"]): row["cost"] for row in rows(data) if row["deployment"] == item.deployment}
    repetitions = [
        energy.cost_per_million(one, Prices(**EUROS)) for one in data.measurements if one.load.concurrency == 1 and one.telemetry
    ]
    assert costs["chat", 1] == pytest.approx(statistics.median(repetitions))


def test_cost_without_telemetry_counts_one_gpu_for_each_rank():
    item = next(item for item in report_data.demo().measurements if item.deployment == "ray-tp2")
    item = item.model_copy(update={"key_parts": {"deployment": {"topology": {"tensor_parallel": 2, "executor": "ray"}}}})
    expected = 2 * item.duration_s / 3600 * 3.6 / item.total_output_tokens * 1e6
    assert energy.cost_per_million(item, Prices(gpu_hour=3.6, currency="EUR")) == pytest.approx(expected)


def test_cost_is_unknown_without_energy_that_has_a_price():
    data = run(prices=EUROS, energy_j=None)
    assert {row["cost"] for row in rows(data) if row["deployment"] == "plain"} == {None}
    assert energy.cost_per_million(data.measurements[0], Prices(gpu_hour=2.5, currency="EUR")) is not None


def test_cpu_has_no_cost_and_shows_load_of_others():
    found = rows(run("cpu", EUROS))
    assert {(row["deployment"], row["cores"], row["cost"], row["foreign_cpu_cores_median"]) for row in found} == {("plain", 8, None, 0.5)}


@pytest.mark.parametrize("accelerator", ["cuda", "cpu"])
def test_report_has_a_section_only_with_telemetry(accelerator):
    cells = [cell for row in Document(render(run(accelerator), bundle="")).cells("energy") for cell in row]
    assert "plain" in cells and "ray-tp2" not in cells
    assert "energy" not in {attributes.get("id") for _, attributes in Document(render(report_data.demo(), bundle="")).tags}


def test_timeline_has_plots_of_what_was_sampled():
    item = report_data.measurement()
    timeline = parts.timeline(item)
    seconds = tuple(float(second) for second in range(30))
    sampled = TelemetryTimeline(seconds=seconds, power_w=tuple(100.0 + second for second in seconds), sm_clock_mhz=(1500.0,) * 29 + (None,))
    key = (item.deployment, item.load.name)
    ((_, row),) = timelines.shown([item], {key: timeline.model_copy(update={"telemetry": sampled})})
    columns = row["columns"]
    assert columns["power_w"] == [100 + second for second in columns["seconds"]] and set(columns["sm_clock_mhz"]) == {1500}
    assert "foreign_cores" not in columns
    data = replace(report_data.demo(), measurements=[item], timelines={key: timeline.model_copy(update={"telemetry": sampled})})
    boxes = {attributes["data-drawing"] for _, attributes in Document(render(data, bundle="")).tags if "data-drawing" in attributes}
    assert {"timeline-power", "timeline-clock"} <= boxes and "timeline-foreign" not in boxes
    assert {"power", "clock", "foreign"} <= set(page.content(data).specs["timeline"])
