"""The final check on failed accuracy checks: run again, permanent gap, accepted gap."""

from __future__ import annotations

import pytest

from servemark.records import Accuracy, Failure, PlannedCheck
from servemark.run import accuracy_gaps


def failed(reason="accuracy_failed", stage="check_accuracy", key="1" * 64):
    check = PlannedCheck(name="gsm8k", limit=5, lock="a" * 64, key=key)
    failure = Failure(stage=stage, reason=reason, detail="lm-eval exited with 1.", log="logs/check.log")
    return Accuracy(deployment="plain", check=check, key_parts={}, failure=failure)


@pytest.fixture
def end(tmp_path):
    """Return a function that ends a run with this record, and returns why the check is a permanent gap."""

    def ended(record, accept_invalid=False):
        record.write(Accuracy.path(tmp_path / "deployments" / "plain", "gsm8k"))
        (found,) = accuracy_gaps.failed(tmp_path, [record], accept_invalid)
        if found.kept is None:
            accuracy_gaps.move(tmp_path, found)
        assert found.path.exists() is (found.kept is not None)
        return found

    return ended


def test_second_failure_for_the_same_reason_is_a_permanent_gap(end):
    assert end(failed()).kept is None
    assert end(failed("accuracy_metric_unknown")).kept is None
    again = end(failed())
    assert again.kept and again.hole["point"] == "gsm8k" and again.hole["reason"] == "accuracy_failed"


@pytest.mark.parametrize(
    "changes", [{"reason": "accuracy_data_unreachable"}, {"reason": "content_changed"}, {"reason": "server_died", "stage": "measure"}]
)
def test_cause_outside_the_check_never_makes_a_permanent_gap(end, changes):
    assert [end(failed(**changes)).kept for _ in range(3)] == [None] * 3


def test_check_that_kills_the_server_twice_is_a_permanent_gap(end):
    assert end(failed("server_died")).kept is None and end(failed("server_died")).kept


def test_another_check_of_this_name_starts_over(end):
    assert end(failed()).kept is None
    assert end(failed(key="2" * 64)).kept is None


@pytest.mark.parametrize(("accepted", "kept"), [(True, True), (("plain/gsm8k",), True), (("*/chat-*",), False)])
def test_accepted_gaps_are_kept_at_once(end, accepted, kept):
    assert bool(end(failed(), accepted).kept) is kept


def test_finished_checks_are_no_gaps(tmp_path):
    done = failed().model_copy(update={"failure": None, "value": 0.5})
    assert accuracy_gaps.failed(tmp_path, [done], False) == []


def test_summary_names_check_reason_log_and_remedy(end):
    text = "\n".join(accuracy_gaps.details([end(failed())]))
    assert all(part in text for part in ("plain/gsm8k", "accuracy_failed", "logs/check.log", "rerun"))
    assert accuracy_gaps.details([]) == []
