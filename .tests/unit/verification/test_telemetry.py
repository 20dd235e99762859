"""Telemetry in the records of an archive, compared with the samples of the nodes."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from builders.archived_run import FINE, wrong
from servemark.measurement import samples
from servemark.measurement.samples import Window

POINT = ("plain", "chat-c1-r1")
FILE = "deployments/plain/attempts/001/telemetry/gn01.jsonl"
BEGIN = 1_800_000_000.0


@pytest.fixture
def sampled(run):
    """The run with samples of one point: a GPU of 400 W that was hot for two seconds."""
    record = next(item for item in run.measurements() if (item.deployment, item.load.name) == POINT)
    end = round(BEGIN + record.duration_s, 3)
    header = {"node": "gn01", "started": BEGIN - 10, "interval_s": 1.0, "kind": "gpu", "gpus": [
        {"position": 0, "uuid": "GPU-a", "name": "H200", "replica": "r0", "mig": False}]}  # fmt: skip
    lines = [{"t": BEGIN - 2 + n / 4, "gpus": [[400.0, 100.0 * n, 1500, 64 * (9 <= n < 12), 60, 90, 1000, [], 0]]} for n in range(400)]
    run.write(FILE, "".join(json.dumps(line) + "\n" for line in [header, *lines]))
    found = samples.telemetry([samples.read("gn01", run.folder / FILE)], Window(BEGIN - 5, BEGIN, end, end + 1))
    run.judge(*POINT, replace(FINE, telemetry=found))
    return run


def change(run, edit) -> list[str]:
    run.edit_json(run.record(*POINT), lambda data: edit(data["telemetry"]))
    return [line for line in wrong(run.seal()) if "telemetry" in line]


def test_samples_that_agree_with_the_record_are_accepted(sampled):
    record = next(item for item in sampled.measurements() if (item.deployment, item.load.name) == POINT)
    assert "throttled" in {reason.code for reason in record.reasons} and record.telemetry.energy_j > 0
    assert wrong(sampled.seal()) == []


def test_reason_and_energy_per_token_are_recomputed_from_the_summary(sampled):
    def better(data: dict[str, Any]) -> None:
        data["telemetry"]["nodes"][0]["gpus"][0] |= {"clock_events": {}, "energy_j": 1.0}

    sampled.edit_json(sampled.record(*POINT), better)
    lines = wrong(sampled.seal())
    assert any("plain chat-c1-r1: verdict" in line and "throttled" in line for line in lines)
    assert any("gpu_energy_j_per_output_token" in line and "measurements.csv" in line for line in lines)


@pytest.mark.parametrize(
    ("key", "value"), [("energy_j", 1.0), ("sm_clock_min_mhz", 1980.0), ("busy_max", 0.0), ("clock_events", {}), ("foreign_processes", [7])]
)
def test_changed_value_of_a_gpu_is_named(sampled, key, value):
    assert any(key in line for line in change(sampled, lambda found: found["nodes"][0]["gpus"][0].update({key: value})))


def test_window_of_another_length_is_named(sampled):
    assert any("seconds" in line for line in change(sampled, lambda found: found.update(end=found["end"] + 0.01)))


def test_missing_and_changed_samples_are_named(sampled):
    def cooler(text: str) -> str:
        return text.replace(", 64, ", ", 0, ")

    sampled.edit(FILE, cooler)
    assert any("clock_events" in line for line in wrong(sampled.seal()))
    (sampled.folder / FILE).unlink()
    assert any("gn01" in line and "missing" in line for line in wrong(sampled.seal()))


@pytest.mark.parametrize(
    "line", ["[]", '{"t":"x"}', '{"t":1,"gpus":3}', '{"t":1,"gpus":[[1]]}', '{"t":1,"gpus":[[1,2,3,4,5,6,7,["a"],0]]}']
)
def test_hostile_lines_are_left_out(sampled, line):
    sampled.edit(FILE, lambda text: text + line + "\n")
    assert wrong(sampled.seal()) == []


def test_value_that_was_not_known_when_measured_is_no_difference(sampled):
    def unknown(found: dict[str, Any]) -> None:
        found["nodes"][0]["gpus"][0]["energy_j"] = None

    assert change(sampled, unknown) == []
