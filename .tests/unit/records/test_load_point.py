"""Plan and measurement embed one load point; records of version 1 can be read."""

from __future__ import annotations

import json
import shutil

import pytest

from builders.loads import load
from builders.paths import FIXTURES
from servemark.errors import ServemarkError
from servemark.measurement import key
from servemark.measurement.ledger import Ledger
from servemark.records import Measurement, Plan, RandomPrompts
from servemark.verification.unpack import unpacked

POINT = {
    "concurrency": 8, "request_rate": 2.0, "repetition": 2, "seed": 7, "input_tokens": 64, "output_tokens": 32, "clients": 2,
    "ask": "replica",
}  # fmt: skip
SHAPE = {
    "dataset": "random", "input_tokens": 64, "output_tokens": 32, "requests": 32, "warmups": 4, "warmup_tokens": 16,
    "options": {"burstiness": 2}, "clients": 2, "ask": "replica",
}  # fmt: skip
FLAT = {
    "kind": "measurement", "version": 1, "deployment": "plain", "point": "chat-q2-r2", "workload": "chat", **POINT, "asked": 32,
    "key": "ab", "key_parts": {"deployment": {}, "point": {"workload": SHAPE}}, "verdict": "INVALID", "completed": 30, "failed": 2,
}  # fmt: skip
EXPECTED = load(**POINT, name="chat-q2-r2", requests=32, warmups=4, warmup_tokens=16, client_options={"burstiness": 2})


@pytest.fixture
def h200():
    """Return a run that an earlier version measured and archived."""
    with unpacked(FIXTURES / "archives" / "h200x4-tp4.tar.zst") as archive:
        yield archive.folder / "deployments" / "tutorial-tp4"


def test_plan_and_measurement_of_version_1_have_the_same_load_point(h200):
    (point,) = Plan.read(h200 / "plan.json").points
    record = Measurement.read(h200 / "points" / "tutorial-c512-r1.json")
    assert record.load == point.load and record.key == point.key
    assert point.load.prompts == RandomPrompts(dataset="random", input_tokens=1024, output_tokens=1024)
    shape = (point.load.name, point.load.concurrency, point.load.requests, point.load.warmups, point.load.warmup_tokens)
    assert shape == ("tutorial-c512-r1", 512, 2560, 8, None)


def test_key_of_an_older_measurement_is_recomputed_in_its_format(h200):
    plan = Plan.read(h200 / "plan.json")
    (point,) = plan.points
    assert plan.key_format == Measurement.read(h200 / "points" / "tutorial-c512-r1.json").key_format == 2
    assert key.digest(plan.key_parts, key.point_parts(point.load), plan.key_format) == point.key
    assert key.digest(plan.key_parts, key.point_parts(point.load)) != point.key
    assert key.point_parts(point.load) == Measurement.read(h200 / "points" / "tutorial-c512-r1.json").key_parts["point"]


def test_a_ledger_entry_of_version_1_is_found_and_read(h200, tmp_path):
    (point,) = Plan.read(h200 / "plan.json").points
    entry = tmp_path / "ledger" / point.key[:2] / point.key
    entry.mkdir(parents=True)
    shutil.copy(h200 / "points" / "tutorial-c512-r1.json", entry / "measurement.json")
    shutil.copy(h200 / "points" / "tutorial-c512-r1.requests.json", entry / "raw.json")
    assert json.loads((entry / "measurement.json").read_text())["version"] == 1
    ledger = Ledger(tmp_path / "ledger")
    found = ledger.find(point.key)
    assert found.record.load == point.load and found.record.output_throughput > 0
    assert (ledger.warnings, ledger.missing([point.key])) == ([], ())


def test_measurement_of_version_1_takes_values_from_key_parts(tmp_path):
    path = tmp_path / "record.json"
    path.write_text(json.dumps(FLAT))
    record = Measurement.read(path)
    assert record.load == EXPECTED and (record.completed, record.failed) == (30, 2)
    record.write(path)
    assert json.loads(path.read_text())["version"] == 2 and Measurement.read(path) == record


@pytest.mark.parametrize(
    "change",
    [
        {"version": 3},
        {"key_parts": {}},
        {"key_parts": {"point": {"workload": 3}}},
        {"key_parts": []},
        {"input_tokens": 0},
        {"surplus": 1},
    ],
    ids=str,
)
def test_a_damaged_record_of_version_1_is_refused(tmp_path, change):
    path = tmp_path / "record.json"
    path.write_text(json.dumps({**FLAT, **change}))
    with pytest.raises(ServemarkError) as refused:
        Measurement.read(path)
    assert refused.value.reason == "record_broken"


@pytest.mark.parametrize("points", [None, 3, [3], [{}], {"a": 1}])
def test_a_damaged_plan_of_version_1_is_refused(tmp_path, points):
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({"kind": "plan", "version": 1, "points": points}))
    with pytest.raises(ServemarkError) as refused:
        Plan.read(path)
    assert refused.value.reason == "record_broken"


def test_prefix_counts_to_prompt_but_not_to_own_tokens():
    point = load(input_tokens=64, output_tokens=32, client_options={"random-prefix-len": "512"})
    assert (point.prefix_tokens, point.prompt_tokens, point.request_tokens) == (512, 576, 608)
    assert load(client_options={"random-prefix-len": None}).prefix_tokens == 0
