"""Accuracy checks on a live stand-in of the server, with a stand-in of lm-eval: results, and failures that keep the deployment."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
from types import SimpleNamespace

import pytest

from builders.deployed import verdict
from builders.paths import ROOT
from servemark import supervisor
from servemark.config import asked_checks
from servemark.deployment.accuracy import Checking
from servemark.measurement import accuracy_key
from servemark.measurement.accuracy import RESULT, Checks
from servemark.records import AskedCheck, PlannedCheck
from standin import make_lm_eval

TASK = ROOT / ".tests" / "fixtures" / "tasks" / "capitals"


@pytest.fixture(scope="module")
def lm_eval(tmp_path_factory):
    return SimpleNamespace(python=str(make_lm_eval(tmp_path_factory.mktemp("lm-eval")) / "bin" / "python"), bytecode=None)


@pytest.fixture
def checked(deploy, lm_eval, tmp_path):
    """Return a live deployment with one check, and functions to run it and to change what lm-eval does."""
    plain, folder = deploy(points=1), tmp_path / "capitals"
    shutil.copytree(TASK, folder)
    task = folder / "capitals.yaml"
    asked = AskedCheck(name="capitals", task=str(task), data=asked_checks.digest(task, plain.config.cache), limit=5, lock="a" * 64)
    planned = PlannedCheck(**asked.model_dump(), key=accuracy_key.key(plain.plan.key_parts, asked))
    plain.plan = plain.plan.model_copy(update={"checks": (planned,)})
    store, place = Checks(plain.ledger.root), plain.folder / "checks" / "capitals"

    def run(**changes):
        plain.plan = plain.plan.model_copy(update={"checks": (planned.model_copy(update=changes),)})
        return Checking(plain.context("check.log"), store, lm_eval).run("capitals", plain.live_records[2], place)

    def tell(**told):
        (folder / ".standin.json").write_text(json.dumps(told))

    return SimpleNamespace(plain=plain, store=store, place=place, run=run, tell=tell, folder=folder)


def test_check_is_stored_and_next_time_taken_from_the_ledger(checked):
    plain = checked.plain
    plain.up()
    assert verdict(plain.measure()) == "VALID"
    assert checked.store.missing(plain.plan) == 1
    found = checked.run()
    assert (found.value, found.stderr, found.samples, found.failure) == (0.5, 0.1, 5, None)
    assert [path.name for path in checked.place.iterdir()] == [RESULT], "no prompts and drafts stay"
    assert checked.store.missing(plain.plan) == 0
    plain.stop()
    (checked.place / RESULT).unlink()
    again = checked.run()
    assert again == found and (checked.place / RESULT).is_file()
    assert plain.start().replay, "nothing is started"


def test_missing_check_alone_starts_the_deployment(checked):
    plain = checked.plain
    plain.up()
    plain.measure()
    plain.stop()
    assert not plain.start().replay


@pytest.mark.parametrize(
    ("behaviour", "changes", "reason"),
    [
        ({"fail": "datasets: Couldn't reach 'openai/gsm8k' on the Hub (ConnectError)"}, {}, "accuracy_data_unreachable"),
        ({"fail": "KeyError: 'question'"}, {}, "accuracy_failed"),
        ({"value": "N/A"}, {}, "accuracy_failed"),
        ({}, {"metric": "exact_match,none"}, "accuracy_metric_unknown"),
        ({}, {"data": "b" * 64}, "content_changed"),
    ],
)
def test_failed_check_has_a_reason_and_the_server_lives_on(checked, behaviour, changes, reason):
    plain = checked.plain
    plain.up()
    checked.tell(**behaviour)
    found = checked.run(**changes)
    assert found.value is None and found.failure.reason == reason and found.failure.remedy
    assert supervisor.is_alive(plain.attempt) and verdict(plain.measure()) == "VALID"
    assert not list(checked.place.glob("*")) and checked.store.missing(plain.plan) == 1


def test_check_that_takes_too_long_is_stopped(checked):
    plain = checked.plain
    plain.timeouts = plain.timeouts.model_copy(update={"point": 1.0})
    plain.up()
    checked.tell(sleep=30)
    found = checked.run()
    assert found.failure.reason == "accuracy_timeout" and supervisor.is_alive(plain.attempt)


def test_ended_deployment_fails_its_checks(checked):
    checked.plain.up()
    checked.plain.stop()
    found = checked.run()
    assert found.value is None and found.failure.stage == "measure"


def test_drafts_with_prompts_are_private_and_of_no_earlier_attempt(checked, monkeypatch):
    plain = checked.plain
    plain.up()
    left = checked.place / ".draft-000"
    left.mkdir(parents=True)
    seen = {}
    run = Checking._run

    def looked(self, check, ready, draft, server):
        seen.update(mode=draft.stat().st_mode & 0o777, left=left.exists())
        return run(self, check, ready, draft, server)

    monkeypatch.setattr(Checking, "_run", looked)
    assert checked.run().failure is None and seen == {"mode": 0o700, "left": False}


def test_failure_of_a_private_task_quotes_no_line_of_the_log(checked):
    checked.plain.up()
    checked.tell(fail="API request failed: an output of the model")
    detail = checked.run().failure.detail
    assert "code 1" in detail and "an output" not in detail


def test_server_killed_during_a_check_is_a_failure_of_this_check(checked):
    plain = checked.plain
    plain.up()
    checked.tell(sleep=3)
    killer = threading.Timer(1.0, os.kill, (plain.pid(), signal.SIGKILL))
    killer.start()
    found = checked.run()
    killer.join()
    assert (found.failure.stage, found.failure.reason) == ("check_accuracy", "server_died")
    assert checked.run().failure.stage == "measure", "this one did not run"
