"""An archive's accuracy checks: records, lm-eval's results, plan and table agree."""

from __future__ import annotations

import json

import pytest

from builders import report_data
from servemark.measurement import accuracy, accuracy_key
from servemark.measurement.ledger import file_sha256
from servemark.records import Accuracy, AskedCheck, PlannedCheck
from servemark.report import accuracies
from servemark.report.gather import RunRecords
from servemark.verification import accuracy as check

ASKED = AskedCheck(name="capitals", limit=5, lock="a" * 64)
RESULT = {
    "results": {"capitals": {"acc,none": 0.4, "acc_stderr,none": 0.2}},
    "n-samples": {"capitals": {"original": 12, "effective": 5}},
    "task_hashes": {"capitals": "b" * 64},
    "lm_eval_version": "0.4.13",
}
CONFIG = {"deployments": {"plain": {"checks": {"capitals": {"min": 0.9, "limit": 5}}}}}


@pytest.fixture
def found(tmp_path):
    """Return a run with one accuracy check."""
    plan = report_data.plan()
    planned = PlannedCheck(**ASKED.model_dump(), key=accuracy_key.key(plan.key_parts, ASKED))
    record = Accuracy.path(tmp_path / "deployments" / "plain", "capitals")
    record.parent.mkdir(parents=True)
    file = record.with_name(accuracy.RESULT)
    file.write_text(json.dumps(RESULT))
    made = accuracy.read(file, ASKED)
    values = {name: getattr(made, name) for name in ("metric", "value", "stderr", "samples", "data", "lm_eval")}
    one = Accuracy(deployment="plain", check=planned, key_parts={}, **values, result=file.name, result_sha256=file_sha256(file))
    run = RunRecords(folder=tmp_path, config=CONFIG)
    run.plans["plain"] = plan.model_copy(update={"checks": (planned,)})
    run.accuracy["plain"] = [one]
    (tmp_path / accuracy.CSV).write_text(accuracies.csv_text(run.accuracy, accuracy.minima(CONFIG)))
    return run


def wrong(run) -> list[str]:
    return [str(finding) for finding in check.check(run)]


def change(run, **changes) -> None:
    run.accuracy["plain"] = [one.model_copy(update=changes) for one in run.accuracy["plain"]]


def test_intact_check_is_right(found):
    assert wrong(found) == []


@pytest.mark.parametrize("changes", [{"value": 0.95}, {"stderr": 0.001}, {"samples": 500}, {"result_sha256": "c" * 64}, {"data": {}}])
def test_record_that_differs_from_lm_evals_result_is_wrong(found, changes):
    change(found, **changes)
    assert any("lm-eval.json" in text for text in wrong(found))


def test_changed_result_file_is_wrong(found):
    (found.folder / "deployments/plain/checks/capitals/lm-eval.json").write_text(json.dumps(RESULT | {"lm_eval_version": "9"}))
    assert len(wrong(found)) == 1


def test_lost_files_are_wrong(found):
    (found.folder / "deployments/plain/checks/capitals/lm-eval.json").unlink()
    (found.folder / accuracy.CSV).unlink()
    assert len(wrong(found)) == 2
    found.accuracy["plain"] = []
    assert len(wrong(found)) == 1


def test_check_of_another_plan_is_wrong(found):
    (planned,) = found.plans["plain"].checks
    found.plans["plain"] = found.plans["plain"].model_copy(update={"checks": (planned.model_copy(update={"limit": 50}),)})
    assert len(wrong(found)) == 2, "the check and its ledger key"


def test_table_with_another_value_is_wrong(found):
    path = found.folder / accuracy.CSV
    path.write_text(path.read_text().replace("0.4", "0.94"))
    assert len(wrong(found)) == 1


def test_minimum_decides_the_table_and_the_measurements(found):
    (row,) = accuracies.rows(found.accuracy, accuracy.minima(CONFIG))
    assert (row["accuracy"], row["accuracy_stderr"], row["minimum"], row["meets_minimum"]) == (0.4, 0.2, 0.9, False)
    assert {item.verdict for item in found.judged([report_data.measurement()])} == {"SUSPECT"}
