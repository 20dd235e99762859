"""Active deployments by files, processes and Slurm; the table and the JSON."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from builders.living import DEAD, ELSEWHERE, NOW, Results, no_slurm, slurm
from servemark.cli import status
from servemark.cli.live import Jobs, job_of, living
from snakemake_executor_plugin_slurm_guarded import journal
from snakemake_executor_plugin_slurm_guarded.commands import CommandFailed, Trouble
from snakemake_executor_plugin_slurm_guarded.queries import Job
from snakemake_executor_plugin_slurm_guarded.records import Checkout
from snakemake_executor_plugin_slurm_guarded.states import State


@pytest.fixture
def results(tmp_path) -> Results:
    return Results(tmp_path)


def test_empty_or_missing_folder_lists_nothing(tmp_path, results):
    assert living(tmp_path / "nothing", no_slurm()) == [] == results.living()


@pytest.mark.parametrize(
    ("facts", "jobs", "lives"),
    [
        ({}, no_slurm(), True),
        ({"identity": DEAD}, no_slurm(), None),
        ({"state": "ended"}, no_slurm(), None),
        ({"state": "ending", "why": "stop_requested"}, no_slurm(), True),
        # Another host: its job decides; if Slurm does not respond, the age of its files.
        ({"identity": ELSEWHERE, "job": "7"}, slurm(j7="RUNNING"), True),
        ({"identity": ELSEWHERE, "job": "7"}, slurm(j7="COMPLETING"), True),
        ({"identity": ELSEWHERE, "job": "7"}, slurm(j7="TIMEOUT"), None),
        ({"identity": ELSEWHERE, "job": "7"}, slurm(), None),
        ({"identity": ELSEWHERE, "job": "7", "held": True, "beat": NOW - 2}, slurm(), None),
        ({"identity": ELSEWHERE, "job": "7", "held": True, "beat": NOW - 2}, no_slurm(), True),
        ({"identity": ELSEWHERE, "held": True, "beat": NOW - 2}, no_slurm(), True),
        ({"identity": ELSEWHERE, "held": True, "beat": NOW - 600}, no_slurm(), False),
        ({"identity": ELSEWHERE, "job": "7"}, no_slurm(), False),
        # An attempt whose job has ended is not active, even if its pid is alive on this host.
        ({"job": "7"}, slurm(), None),
    ],
)
def test_only_running_deployments_are_listed(results, facts, jobs, lives):
    results.add(**facts)
    assert [one.sure for one in results.living(jobs)] == ([] if lives is None else [lives])


def test_only_the_latest_attempt_is_listed(results):
    results.add()
    results.add(state="ended")
    assert results.living() == []


def test_measured_deployment_and_endpoint_show_their_state(results):
    results.tell("a", "chat-c1-r1: 6 requests", NOW - 1)
    results.tell("b", "something else", NOW - 1)
    results.add("a", ends_at=NOW + 130)
    results.add("b", held=True, beat=NOW - 1)
    results.add("c", state="waiting", waiting_for="deployment x (supervisor 1, since)")
    a, c, b = results.living()
    assert (a.purpose, a.state, a.left_s, a.url) == ("measured", "measure: chat-c1-r1: 6 requests", 100.0, None)
    assert (b.purpose, b.state, b.finished, b.running, b.url) == ("held", "ready", 12, 3, "http://10.0.0.1:20000")
    assert b.since == NOW - 61 and b.left_s is None
    assert c.state.endswith(" deployment x")


def test_heartbeat_of_an_earlier_attempt_is_ignored(results):
    results.add("a", held=True, beat=NOW - 1, state="ended")
    results.add("a", held=True)
    (one,) = results.living()
    assert one.url is None and one.state == "starting"


def test_queued_job_is_listed_until_it_begins(results):
    file = results.run / "slurm" / "jobs.jsonl"
    journal.append(file, "run", run="r")
    for number, name in (("7", "a"), ("8", "b"), ("9", "c")):
        journal.append(file, "submitted", run="r", job=number, wildcards={"deployment": name})
    journal.append(file, "submitted", run="r", job="10", wildcards={"environment": "e"})
    journal.append(file, "ended", run="r", job="9")
    journal.append(file, "submitted", run="r", job="11", wildcards={"deployment": "d"})
    results.add("b", job="8", identity=ELSEWHERE)
    found = results.living(slurm(j7="PENDING", j8="RUNNING", j9="PENDING", j10="PENDING", j11="RUNNING"))
    assert [(one.deployment, one.purpose, one.job_id) for one in found] == [
        ("b", "measured", "8"),
        ("a", "queued", "7"),
        ("d", "queued", "11"),
    ]
    assert "RUNNING" in found[2].state
    assert "PENDING" in found[1].state and "Priority" in found[1].state
    journal.append(file, "run_ended", run="r")
    assert len(results.living(slurm(j7="PENDING", j8="RUNNING"))) == 1


@pytest.mark.parametrize(("owner", "job"), [("job 42", "42"), ("job 42, start 2", "42"), ("process 1:2@h", None), (None, None)])
def test_job_id_is_read_from_an_owner(owner, job):
    assert job_of(owner) == job


def test_slurm_is_not_queried_again_after_a_failure():
    asked = []

    def ask(job: str) -> Job | None:
        asked.append(job)
        raise CommandFailed(Trouble.UNREACHABLE, ["scontrol"], "no")

    jobs = Jobs(ask)
    assert jobs.lives("1") is None and jobs.lives("2") is None and asked == ["1"]


def test_table_and_json_golden(results):
    results.add("a", held=True, beat=NOW - 1, ends_at=NOW + 3630)
    results.add("b", identity=ELSEWHERE)
    found = results.living()
    text = status.table(found, NOW)
    head, b, a, *below = text.splitlines()
    assert head.split() == list(status.COLUMNS)
    assert b.split()[:4] == ["demo", "b", "measuring", "another-host"] and b.endswith(" ?")
    assert "1:00:00" in a and "12 (+3 now)" in a and a.endswith("ready")
    assert "http://10.0.0.1:20000/v1" in below[1] and "how-to-use.txt" in below[1] and below[-1].startswith("? =")
    items = {item["deployment"]: item for item in json.loads(status.as_json(found))}
    assert items["a"]["since"] == "2027-01-15T07:58:59+00:00" and items["a"]["left_s"] == 3600.0
    assert (items["b"]["sure"], items["a"]["sure"]) == (False, True)
    assert len(status.table([], NOW).splitlines()) == 1


def test_copy_of_a_checkout_lists_nothing_of_the_original(tmp_path, monkeypatch):
    own, copy = tmp_path / "own", tmp_path / "copy"
    own.mkdir()
    monkeypatch.chdir(own)
    checkout = Checkout.of(own)
    results = Results(Path())
    results.add("a", held=True, beat=NOW - 1, checkout=checkout)
    results.add("b", held=True, beat=NOW - 1, checkout=checkout, identity=ELSEWHERE, job="7")
    file = results.run / "slurm" / "jobs.jsonl"
    journal.append(file, "run", run="r", checkout=checkout.model_dump())
    journal.append(file, "submitted", run="r", job="8", wildcards={"deployment": "c"})
    jobs = {"j7": "RUNNING", "j8": "PENDING"}
    shutil.copytree(own, copy)
    shown = [one.deployment for one in results.living(slurm(**jobs))]
    monkeypatch.chdir(copy)
    assert shown == ["a", "b", "c"] and results.living(slurm(**jobs)) == []
    monkeypatch.chdir(own.rename(tmp_path / "moved"))
    assert len(results.living(slurm(**jobs))) == 3


def test_reused_job_number_is_not_ours(results):
    file = results.run / "slurm" / "jobs.jsonl"
    journal.append(file, "run", run="r")
    journal.append(file, "submitted", run="r", job="7", wildcards={"deployment": "a"})
    for name, count in (("r", 1), ("another", 0)):
        assert len(results.living(Jobs(lambda job, name=name: Job(job, State.parse("RUNNING"), name=name)))) == count
