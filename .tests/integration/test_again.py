"""Later runs in the same checkout make only missing files and measure no point twice."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time

import pytest

from integration.harness import RUN, Checkout
from servemark import verification

# Requests of one load point: the measured ones and one warm-up; each start of a server adds one, the readiness check.
POINT = 7


# In `make test`, test_lost_files_are_restored_and_only_lost_results_remeasured loses all records at once.
@pytest.mark.full
def test_deleted_record_is_restored_from_ledger(measured: Checkout):
    before, other, served = measured.started_at("a"), measured.digests("b"), measured.requests_served("a")
    (measured.results / "deployments/a/points/chat-c2-r1.json").unlink()

    again = measured.run()

    assert again.rc == 0, again.text
    assert "from the ledger" in again.text and "nothing is started" in again.text
    assert measured.started_at("a") == before and measured.digests("b") == other
    assert len(measured.attempts("a")) == 1 and measured.requests_served("a") == served
    measured.assert_all_dead()


def test_added_concurrency_measures_only_its_points(measured: Checkout):
    before = {name: measured.started_at(name) for name in "ab"}
    measured.config["workloads"]["chat"]["concurrency"] = [1, 2, 3]

    again = measured.run()

    assert again.rc == 0, again.text
    for name in "ab":
        after = measured.started_at(name)
        assert after.pop("chat-c3-r1") > max(before[name].values())
        assert after == before[name]
        assert measured.requests_served(name) == 2 + 3 * POINT
    measured.assert_all_dead()


def test_ledger_continues_a_campaign_on_another_machine(measured_checkout: Checkout, checkout: Checkout):
    """The run has the same name on both machines, as in docs/how-to/long-campaign.md: both have an attempt 001."""
    checkout.keep("a")
    checkout.config["workloads"]["chat"]["concurrency"] = [1, 2, 3]
    shutil.copytree(measured_checkout.results / "ledger", checkout.results / "ledger")
    # One entry is incomplete, as if the copy was interrupted.
    before = measured_checkout.points("a")
    key = before["chat-c1-r1"]["key"]
    (checkout.results / "ledger" / key[:2] / key / "measurement.json").unlink()

    done = checkout.run()

    assert done.rc == 0, done.text
    after = checkout.points("a")
    assert set(after) == {"chat-c1-r1", "chat-c2-r1", "chat-c3-r1"}
    same = [name for name in before if before[name]["started_at"] == after[name]["started_at"]]
    assert same == ["chat-c2-r1"] and checkout.requests_served("a") == 1 + 2 * POINT
    assert {record["attempt"] for record in after.values()} == {f"results/{RUN}/deployments/a/attempts/001"}
    archive = checkout.results / "archive" / f"{RUN}.tar.zst"
    verified = subprocess.run(
        [sys.executable, "-m", "servemark.cli", "verify", str(archive)], cwd=checkout.path, capture_output=True, text=True, timeout=180
    )
    assert verified.returncode == 0, verified.stderr
    (text,) = verification.verify(archive).not_checked
    assert "chat-c2-r1" in text and "another attempt of this name" in text


def test_chosen_points_are_measured_again_and_others_are_kept(measured: Checkout):
    before, other = measured.started_at("a"), measured.digests("b")
    command = [sys.executable, "-m", "servemark.cli", "remeasure", RUN, "a/chat-c1-*"]
    said = subprocess.run(command, cwd=measured.path, capture_output=True, text=True, timeout=180)
    assert said.returncode == 0, said.stderr

    again = measured.run()

    assert again.rc == 0, again.text
    after = measured.started_at("a")
    assert after["chat-c1-r1"] > before["chat-c1-r1"] and after["chat-c2-r1"] == before["chat-c2-r1"]
    assert measured.digests("b") == other
    (replaced,) = (measured.results / "ledger" / "replaced").glob("a-chat-c1-r1-*")
    assert json.loads((replaced / "chat-c1-r1.json").read_text())["started_at"] == before["chat-c1-r1"]
    assert verification.verify(measured.results / "archive" / f"{RUN}.tar.zst").wrong == ()
    measured.assert_all_dead()


@pytest.mark.parametrize("file", [pytest.param("raw.json", marks=pytest.mark.full), "measurement.json"])
def test_damaged_ledger_entry_is_measured_again(measured: Checkout, file: str):
    before, other = measured.started_at("a"), measured.digests("b")
    key = measured.points("a")["chat-c1-r1"]["key"]
    entry = measured.results / "ledger" / key[:2] / key / file
    text = entry.read_text()
    figure = "completed" if file == "measurement.json" else "duration"
    entry.write_text(text.replace(f'"{figure}"', f'"{figure[:-1]}"', 1))
    for path in (measured.results / "deployments/a/points").glob("chat-c1-r1.json"):
        path.unlink()

    again = measured.run()

    assert again.rc == 0, again.text
    assert "damaged" in again.text
    after = measured.started_at("a")
    assert after["chat-c1-r1"] > before["chat-c1-r1"] and after["chat-c2-r1"] == before["chat-c2-r1"]
    assert measured.digests("b") == other
    assert json.loads(entry.read_text()), "the entry is restored"
    assert list((measured.results / "ledger/damaged").glob(f"*/{key}"))


def test_dry_run_of_1000_points_ends_in_time(checkout: Checkout):
    checkout.keep("a")
    checkout.config["workloads"]["chat"] |= {"concurrency": list(range(1, 501)), "repetitions": 2}
    done = checkout.run("-n", "--quiet", "rules")
    assert done.rc == 0, done.text[-3000:]
    assert "cyclic" not in done.text.lower() and "recursion" not in done.text.lower()
    assert re.search(r"^measure +1000$", done.text, re.MULTILINE), done.text


@pytest.mark.full
def test_dry_run_of_200_deployments_ends_in_time(checkout: Checkout, capsys: pytest.CaptureFixture[str]):
    checkout.config["workloads"]["chat"]["concurrency"] = list(range(1, 11))
    one = checkout.config["deployments"]["a"]
    checkout.config["deployments"] = {f"d{n}": one | {"options": {"max-model-len": 256 + n}} for n in range(200)}
    begin = time.monotonic()
    done = checkout.run("-n", "--quiet", "rules")
    seconds = time.monotonic() - begin
    assert done.rc == 0, done.text[-3000:]
    assert re.search(r"^measure +2000$", done.text, re.MULTILINE), done.text
    with capsys.disabled():
        print(f"\n200 deployments x 10 points: dry run in {seconds:.1f} s (wanted on an idle machine: 5 s)")
