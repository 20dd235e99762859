"""Accuracy checks of a deployment on the stand-ins of server and lm-eval: verdicts, another minimum, a failed check."""

from __future__ import annotations

import csv
import json
import shutil

import pytest

from integration.harness import ROOT, Checkout
from servemark import verification
from servemark.environments import build, lockfiles
from servemark.progress import Progress
from standin import make_lm_eval

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]
TASK = ROOT / ".tests" / "fixtures" / "tasks" / "capitals"
CHECK = "deployments/a/checks/capitals/accuracy.json"


@pytest.fixture
def checked(checkout: Checkout, tmp_path) -> Checkout:
    """Return a checkout with a stand-in in place of lm-eval's environment, and one deployment with a check."""
    shutil.copytree(TASK, checkout.path / "capitals")
    checkout.config["cache"] = str(tmp_path / "cache")
    prefix = build.prefix_of(lockfiles.accuracy(ROOT / "envs"), tmp_path / "cache")
    make_lm_eval(prefix)
    build.use_prefix("accuracy", prefix, None, Progress(None, "test")).write(prefix / build.MARKER)
    checkout.keep("a")
    checkout.config["workloads"]["chat"]["concurrency"] = [2]
    ask(checkout)
    return checkout


def ask(checkout: Checkout, **changes) -> None:
    asked = {"task": "capitals/capitals.yaml", "limit": 5, "min": 0.9} | changes
    checkout.config["deployments"]["a"]["checks"] = {"capitals": asked}


def tell(checkout: Checkout, **told) -> None:
    (checkout.path / "capitals" / ".standin.json").write_text(json.dumps(told))


def reasons(checkout: Checkout) -> set[tuple[str, str]]:
    return {(row["verdict"], row["reasons"]) for row in checkout.rows().values()}


def test_low_accuracy_makes_points_suspect_and_failed_check_runs_alone_again(checked: Checkout):
    done = checked.run()
    assert done.rc == 0, done.text
    rows = checked.rows().values()
    assert rows and all(row["verdict"] == "SUSPECT" and "accuracy_below_minimum" in row["reasons"] for row in rows)
    record, measured = checked.record(CHECK), checked.started_at("a")
    assert (record["value"], record["stderr"], record["samples"], record["failure"]) == (0.5, 0.1, 5, None)
    (row,) = csv.DictReader((checked.results / "accuracy.csv").open())
    assert (row["accuracy"], row["minimum"], row["meets_minimum"]) == ("0.5", "0.9", "False")
    archived = set(checked.archived())
    assert {CHECK, CHECK.replace("accuracy.json", "lm-eval.json"), "logs/check_accuracy/a/capitals.log", "accuracy.csv"} <= archived
    assert "envs/accuracy.lock" in archived and not [name for name in archived if "samples_" in name]
    assert [verification.verify(path).wrong for path in checked.results.glob("archive/*.tar.zst")] == [()]
    assert 'id="accuracy"' in checked.report()

    # Another minimum judges again and runs nothing on a server.
    ask(checked, min=0.4)
    assert checked.foretold() == {"collect_measurements", "write_report", "archive_results", "check_measurements"}
    done = checked.run()
    assert done.rc == 0, done.text
    assert not any("accuracy_below_minimum" in row["reasons"] for row in checked.rows().values())
    assert len(checked.attempts("a")) == 1 and checked.record(CHECK)["started_at"] == record["started_at"]

    # A failed check is a gap with a reason. The points stay.
    ask(checked, min=0.4, limit=6)
    tell(checked, fail="ConnectionError: Couldn't reach 'openai/gsm8k' on the Hub")
    done = checked.run()
    assert done.rc == 1, done.text
    (failed,) = (checked.results / "rejected" / "a" / "checks").glob("*.json")
    assert json.loads(failed.read_text())["failure"]["reason"] == "accuracy_data_unreachable"
    assert checked.started_at("a") == measured and all(row["verdict"] != "INVALID" for row in checked.rows().values())
    assert "accuracy_data_unreachable" in checked.report()

    # The next run repeats the check alone.
    tell(checked, value=0.7)
    done = checked.run()
    assert done.rc == 0, done.text
    assert checked.started_at("a") == measured and checked.record(CHECK)["value"] == 0.7
    assert checked.requests_served("a") and len(checked.attempts("a")) == 3
    assert [verification.verify(path).wrong for path in checked.results.glob("archive/*.tar.zst")] == [()]
    assert checked.foretold() == set()
    checked.assert_all_dead()
