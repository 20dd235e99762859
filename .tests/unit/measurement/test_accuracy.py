"""Accuracy checks: ledger key, lm-eval's result file, minimum, store."""

from __future__ import annotations

import json
import os

import pytest

from builders.report_data import measurement
from servemark.errors import ServemarkError
from servemark.measurement import accuracy
from servemark.measurement.accuracy import RESULT, Checks
from servemark.measurement.accuracy_key import key
from servemark.measurement.ledger import file_sha256
from servemark.records import Accuracy, AskedCheck, PlannedCheck

GSM8K = AskedCheck(name="gsm8k", limit=200, lock="a" * 64)
OWN = AskedCheck(name="mine", task="/tasks/mine.yaml", data="b" * 64, limit=200, lock="a" * 64)
SHARE = {"model": "m", "options": {"quantization": "fp8"}}


def result(**changes):
    """Return lm-eval's result for GSM8K, in the form of 0.4.13."""
    numbers = {
        "name": "gsm8k", "alias": "gsm8k", "sample_len": 200,
        "exact_match,strict-match": 0.85, "exact_match_stderr,strict-match": 0.025,
        "exact_match,flexible-extract": 0.91, "exact_match_stderr,flexible-extract": 0.02,
    }  # fmt: skip
    return {
        "results": {"gsm8k": numbers},
        "n-samples": {"gsm8k": {"original": 1319, "effective": 200}},
        "task_hashes": {"gsm8k": "c" * 64},
        "lm_eval_version": "0.4.13",
    } | changes


def written(path, content):
    path.write_text(json.dumps(content))
    return path


@pytest.mark.parametrize(
    "changes",
    [
        {"limit": 100},
        {"shots": 8},
        {"metric": "acc,none"},
        {"chat_template": True},
        {"lock": "d" * 64},
        {"data": "e" * 64},
        {"task": "/x/o.yaml"},
    ],
)
def test_key_depends_on_what_decides_the_value(changes):
    other = OWN.model_copy(update=changes)
    assert key(SHARE, OWN) != key(SHARE, other)


def test_key_depends_on_task_and_deployment_and_not_on_paths():
    assert key(SHARE, GSM8K) != key(SHARE, GSM8K.model_copy(update={"name": "arc_easy"}))
    assert key(SHARE, GSM8K) != key(SHARE | {"options": {}}, GSM8K)
    moved = OWN.model_copy(update={"task": "/elsewhere/mine.yaml", "name": "other"})
    assert key(SHARE, OWN) == key(SHARE, moved)


def test_first_metric_counts_unless_another_is_named(tmp_path):
    path = written(tmp_path / "r.json", result())
    first = accuracy.read(path, GSM8K)
    assert (first.metric, first.value, first.stderr, first.samples) == ("exact_match,strict-match", 0.85, 0.025, 200)
    named = accuracy.read(path, GSM8K.model_copy(update={"metric": "exact_match,flexible-extract"}))
    assert (named.value, named.stderr, named.data) == (0.91, 0.02, {"gsm8k": "c" * 64})


def test_group_has_its_own_value_and_the_examples_of_its_tasks(tmp_path):
    tasks = {"mmlu_law": {"acc,none": 0.2}, "mmlu": {"acc,none": 0.6, "acc_stderr,none": "N/A"}, "mmlu_art": {"acc,none": 1.0}}
    counts = {name: {"original": 9, "effective": 5} for name in ("mmlu_law", "mmlu_art")}
    path = written(tmp_path / "r.json", result(results=tasks) | {"n-samples": counts})
    found = accuracy.read(path, GSM8K.model_copy(update={"name": "mmlu"}))
    assert (found.value, found.stderr, found.samples) == (0.6, None, 10)


def test_tag_is_no_task_so_no_value_of_one_of_its_tasks_counts(tmp_path):
    tasks = {"arc_challenge": {"acc,none": 0.3}, "arc_easy": {"acc,none": 0.9}}
    path = written(tmp_path / "r.json", result(results=tasks, groups=None))
    with pytest.raises(ServemarkError) as caught:
        accuracy.read(path, GSM8K.model_copy(update={"name": "ai2_arc"}))
    assert caught.value.reason == "accuracy_failed" and "arc_easy" in caught.value.what


@pytest.mark.parametrize("own", ["mine", "capitals"])
def test_own_task_or_group_may_have_another_name_than_the_check(tmp_path, own):
    tasks = {"capitals": {"acc,none": 0.7}}
    path = written(tmp_path / "r.json", result(results=tasks))
    assert accuracy.read(path, OWN.model_copy(update={"name": own})).value == 0.7
    group = {"a": {"acc,none": 0.2}, "both": {"acc,none": 0.6}, "b": {"acc,none": 1.0}}
    path = written(tmp_path / "g.json", result(results=group, groups={"both": group["both"]}))
    assert accuracy.read(path, OWN.model_copy(update={"name": own})).value == 0.6


def test_result_file_keeps_no_examples_of_a_task(tmp_path):
    path = written(tmp_path / "r.json", result(configs={"gsm8k": {"fewshot_config": {"samples": ["a secret"]}}}))
    accuracy.without_task_texts(path)
    assert json.loads(path.read_text()) == result()


def test_unknown_metric_names_those_that_exist(tmp_path):
    with pytest.raises(ServemarkError) as caught:
        accuracy.read(written(tmp_path / "r.json", result()), GSM8K.model_copy(update={"metric": "acc,none"}))
    assert caught.value.reason == "accuracy_metric_unknown" and "exact_match,flexible-extract" in caught.value.what


@pytest.mark.parametrize("content", [[], {}, result(results={}), result(results={"gsm8k": {"exact_match,none": "N/A"}}), {"results": 1}])
def test_broken_result_file_is_a_failure(tmp_path, content):
    with pytest.raises(ServemarkError) as caught:
        accuracy.read(written(tmp_path / "r.json", content), GSM8K)
    assert caught.value.reason == "accuracy_failed"


def record(value, deployment="plain", name="gsm8k", **fields):
    planned = PlannedCheck(**GSM8K.model_copy(update={"name": name}).model_dump(), key=key(SHARE, GSM8K))
    values = {"metric": "acc,none", "value": value, "stderr": 0.02, "samples": 200}
    return Accuracy(deployment=deployment, check=planned, key_parts={}, **(values | fields))


def test_measurements_below_the_minimum_are_suspect():
    items = [measurement("plain"), measurement("other"), measurement("plain", verdict="INVALID")]
    wanted = {"plain": {"gsm8k": 0.9}, "other": {"gsm8k": 0.8}}
    found = accuracy.judged(items, [record(0.85), record(0.85, "other")], wanted)
    assert [item.verdict for item in found] == ["SUSPECT", "VALID", "INVALID"]
    (reason,) = found[0].reasons
    assert (reason.code, reason.severity) == ("accuracy_below_minimum", "SUSPECT") and "0.85" in reason.detail and "0.9" in reason.detail
    assert accuracy.judged(items, [record(0.9)], wanted) == items, "equal to the minimum is enough"
    assert accuracy.judged(items, [record(None)], wanted) == items, "a failed check decides nothing"


def test_every_start_of_a_deployment_has_its_minimum():
    (found,) = accuracy.judged([measurement("plain+1")], [record(0.1, "plain+1")], {"plain": {"gsm8k": 0.9}})
    assert found.verdict == "SUSPECT"


def test_minima_come_from_the_resolved_configuration():
    deployments = {"plain": {"checks": {"gsm8k": {"min": 0.9, "limit": 5}}}, "other": {}}
    assert accuracy.minima({"deployments": deployments}) == {"plain": {"gsm8k": 0.9}}
    assert accuracy.minima({}) == {}
    with pytest.raises(ServemarkError):
        accuracy.minima({"deployments": {"plain": {"checks": {"gsm8k": {}}}}})


def test_store_returns_intact_entries_only(tmp_path):
    store, path = Checks(tmp_path / "ledger"), written(tmp_path / "r.json", result())
    kept = record(0.85, result=RESULT, result_sha256=file_sha256(path))
    assert store.find(kept.check.key) is None
    store.store(kept, path)
    store.store(kept, path)
    found, file = store.find(kept.check.key)
    assert found == kept and json.loads(file.read_text()) == result()
    file.unlink()
    written(file, result(results={}))
    assert store.find(kept.check.key) is None
    store.store(kept, path)
    assert store.find(kept.check.key) is not None, "a damaged entry is replaced"
    assert not list(store.root.glob("*/.draft-*"))


def test_two_runs_may_store_one_check_at_once(tmp_path, monkeypatch):
    store, path = Checks(tmp_path / "ledger"), written(tmp_path / "r.json", result())
    kept = record(0.85, result=RESULT, result_sha256=file_sha256(path))
    real = os.rename

    def second(source, target):
        monkeypatch.setattr(os, "rename", real)
        store.store(kept, path)
        real(source, target)

    monkeypatch.setattr(os, "rename", second)
    store.store(kept, path)
    assert store.find(kept.check.key) is not None and not list(store.root.glob("*/.draft-*"))
