"""A run through a scheduler: requests and time limits of its jobs, and checks before the first job."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest
from slurm_tools import on_path

from builders import report_data
from builders.deployed import CONFIG, planned_point
from servemark.config.cluster import Site, SmallJobs
from servemark.config.topology import AskedTopology
from servemark.errors import ConfigError
from servemark.measurement.ledger import Ledger
from servemark.records import PlannedCheck
from servemark.run import scheduled, signals
from snakemake_executor_plugin_slurm_guarded import journal, leftovers, preflight
from snakemake_executor_plugin_slurm_guarded.errors import TERMS, GuardedError
from snakemake_executor_plugin_slurm_guarded.request import Request

SITE = Site.model_validate(
    {
        "scheduler": "slurm",
        "account": "me",
        "partition": "gpu",
        "gpus_per_node": 4,
        "minutes_to_start": 12,
        "minutes_per_point": 5,
        "small_jobs": {"partition": "short", "minutes": 7},
    }
)


def config(topology: dict | None = None, **site):
    deployments = {
        name: deployment.model_copy(update={"topology": AskedTopology(**(topology or {}))})
        for name, deployment in CONFIG.deployments.items()
    }
    cluster = Site.model_validate(SITE.model_dump() | {"max_minutes": 600} | site)
    return CONFIG.model_copy(update={"cluster": cluster, "deployments": deployments})


@pytest.fixture(autouse=True)
def own_variables(monkeypatch):
    """Reset exported variables and cached partitions after each test."""
    monkeypatch.setattr(os, "environ", dict(os.environ))
    for name in (scheduled.VARIABLE, scheduled.CLUSTER_VARIABLE, journal.VARIABLE):
        os.environ.pop(name, None)
    scheduled._ask.cache_clear()


@pytest.mark.parametrize(
    ("is_main", "jobs", "inherited", "expected", "cluster"),
    [
        (True, 10, False, True, "slurm"),
        (True, None, False, False, None),
        # A local run in the shell or the job of a scheduled one.
        (True, None, True, False, None),
        (False, None, True, True, None),
        (False, 1, False, False, None),
    ],
)
def test_run_is_scheduled_if_main_process_submits_jobs(is_main, jobs, inherited, expected, cluster):
    if inherited:
        os.environ[scheduled.VARIABLE] = "1"
    assert scheduled.is_scheduled(is_main=is_main, jobs=jobs) is expected
    assert (scheduled.VARIABLE in os.environ) is expected
    assert scheduled.default_cluster() == cluster


def test_the_users_cluster_is_kept():
    os.environ[scheduled.CLUSTER_VARIABLE] = "mine"
    assert scheduled.is_scheduled(is_main=True, jobs=3)
    assert scheduled.default_cluster() == "mine"


@pytest.mark.parametrize("exported", [False, True])
def test_variable_is_named_if_it_may_have_set_the_cluster(exported):
    os.environ.pop("SLURM_JOB_ID", None)
    if exported:
        os.environ[scheduled.CLUSTER_VARIABLE] = "mine"
    with pytest.raises(ConfigError) as refused:
        scheduled.refuse_servers_outside_a_job(config())
    assert (scheduled.CLUSTER_VARIABLE in refused.value.do) is exported and "--config cluster=" in refused.value.do


@pytest.mark.parametrize(
    ("missing", "site", "minutes"),
    [(None, {}, 12), (0, {}, 12), (6, {}, 42), (6, {"max_minutes": 30}, 30), (1000, {"max_minutes": 30}, 30)],
)
def test_job_gets_the_time_of_missing_points(missing, site, minutes):
    assert scheduled.deployment_request(config(**site), "plain", missing).minutes == minutes


def test_job_requests_what_the_cluster_file_states():
    found = scheduled.deployment_request(
        config({"nodes": 2, "tensor_parallel": 4, "pipeline_parallel": 2}, reservation="day", extra=("--exclude=n1",)),
        "plain",
        0,
    )
    assert found == Request(
        name="plain",
        account="me",
        partition="gpu",
        nodes=2,
        gres="gpu:4",
        minutes=12,
        exclusive=True,
        extra="--reservation=day --exclude=n1",
    )


def test_short_job_uses_the_partition_of_short_jobs():
    found = scheduled.small_request(config(), "probe_hardware")
    assert (found.name, found.partition, found.minutes, found.account, found.nodes) == (
        "probe_hardware",
        "short",
        7,
        "me",
        1,
    )


@pytest.mark.parametrize(
    ("site", "rules"),
    [
        ({}, ["probe_hardware", "check_environment"]),
        ({"build_on": "job"}, ["probe_hardware", "check_environment", "build_environment"]),
        ({"stage_on": "job"}, ["probe_hardware", "check_environment", "stage_weights"]),
    ],
)
def test_only_submitted_short_jobs_are_checked(site, rules):
    assert [found.name for found in scheduled.small_requests(config(**site))] == rules


@pytest.mark.parametrize(("gres", "whole"), [("gpu:h100:4(S:0-1)", True), ("(null)", False)])
def test_exclusive_job_may_get_gpus_it_does_not_request(tmp_path, monkeypatch, gres, whole):
    asked = on_path(tmp_path / "bin", monkeypatch)("sinfo", f"echo '{gres}'")
    given = config(gpus_per_node=0)
    for _ in range(2):
        assert scheduled.small_request(given, "probe_hardware").exclusive is whole
    assert not scheduled.small_request(given, "stage_weights").exclusive
    assert asked.read_text().splitlines() == ["--all --noheader --format=%G --partition=short"]


def test_snakemake_knows_each_resource_of_a_request():
    full = Request("x", "a", "p", "q", "c", 2, "gpu:1", 5, True, "--x", 8, 100, "--y")
    assert set(full.resources()) == set(scheduled.RESOURCES)
    kinds = {name: type(value) for name, value in scheduled.RESOURCES.items()}
    assert {name: type(value) for name, value in full.resources().items()} == kinds
    assert Request.of(scheduled.RESOURCES) == replace(Request(), cpus=1), "no request leaves the choice to Slurm"


PARTITION = "PartitionName=gpu Default=NO MaxTime=00:30:00 State=UP"


@pytest.mark.parametrize(
    ("body", "minutes", "calls"),
    [
        (f"echo '{PARTITION}'", 30, 1),
        (f"echo '{PARTITION}'".replace("00:30:00", "UNLIMITED"), 42, 1),
        ("exit 1", 42, 1),
    ],
    ids=["limited", "unlimited", "no answer"],
)
def test_limit_of_partition_counts_and_is_queried_once(tmp_path, monkeypatch, body, minutes, calls):
    asked = on_path(tmp_path / "bin", monkeypatch)("scontrol", body)
    given = config(max_minutes=None)
    for _ in range(2):
        assert scheduled.deployment_request(given, "plain", 6).minutes == minutes
    assert len(asked.read_text().splitlines()) == calls


def test_missing_points_are_counted_by_the_ledger(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given, plan = config(), Path("plan.json")
    assert scheduled.missing_points(given, plan) is None, "no plan yet"
    points = tuple(planned_point(number, {}) for number in (1, 2, 3))
    report_data.plan().model_copy(update={"points": points}).write(plan)
    assert scheduled.missing_points(given, plan) == 3
    record = report_data.measurement().model_copy(update={"key": points[1].key})
    Path("raw.json").write_text("{}")
    monkeypatch.setattr(Ledger, "missing", lambda ledger, keys: [key for key in keys if key != record.key])
    assert scheduled.missing_points(given, plan) == 2
    check = PlannedCheck(name="gsm8k", limit=5, lock="a" * 64, key="b" * 64)
    report_data.plan().model_copy(update={"points": points, "checks": (check,)}).write(plan)
    assert scheduled.missing_points(given, plan) == 3, "an accuracy check counts as a point"
    plan.write_text("{}")
    assert scheduled.missing_points(given, plan) is None, "an unreadable plan counts as none"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("echo 2026-11-21T20:30:00", datetime(2026, 11, 21, 20, 30).timestamp()),
        ("echo '  2026-11-21T20:30:00 '", datetime(2026, 11, 21, 20, 30).timestamp()),
        ("echo N/A", None),
        ("echo UNLIMITED", None),
        ("", None),
        ("echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1", None),
    ],
    ids=["a limit", "with blanks", "pending", "unlimited", "says nothing", "fails"],
)
def test_end_of_own_job_is_queried(tmp_path, monkeypatch, body, expected):
    asked = on_path(tmp_path / "bin", monkeypatch)("squeue", body)
    os.environ["SLURM_JOB_ID"] = "4711"
    assert scheduled.own_end() == expected
    assert asked.read_text() == "--noheader --jobs=4711 --format=%e\n"


def test_own_end_outside_of_a_job_is_none_without_query(tmp_path, monkeypatch):
    asked = on_path(tmp_path / "bin", monkeypatch)("squeue", "echo 2026-11-21T20:30:00")
    os.environ.pop("SLURM_JOB_ID", None)
    assert scheduled.own_end() is None and not asked.exists()


def test_own_end_without_squeue_is_none(tmp_path):
    os.environ |= {"SLURM_JOB_ID": "4711", "PATH": str(tmp_path)}
    assert scheduled.own_end() is None


def test_main_process_ends_before_its_own_job(monkeypatch):
    planned = []
    monkeypatch.setattr(signals, "at", lambda moment, why: planned.append(moment))
    monkeypatch.setattr(scheduled, "own_end", lambda: 1000.0)
    monkeypatch.delenv(scheduled.VARIABLE, raising=False)
    scheduled.end_with_own_job()
    assert planned == [], "its jobs are local"
    monkeypatch.setenv(scheduled.VARIABLE, "1")
    scheduled.end_with_own_job()
    assert planned == [1000.0 - scheduled.OWN_MARGIN_S]
    monkeypatch.setattr(scheduled, "own_end", lambda: None)
    scheduled.end_with_own_job()
    assert len(planned) == 1, "its end is not known"


def test_prepare_checks_requests_and_ends_old_jobs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    seen = []
    monkeypatch.setattr(preflight, "check", lambda requests, say, **_: (seen.append([r.name for r in requests]), say("asked")))
    monkeypatch.setattr(leftovers, "cancel", lambda journals, folder, say: seen.append((journals, folder)))
    earlier = Path("results/old/slurm/jobs.jsonl")
    earlier.parent.mkdir(parents=True)
    earlier.touch()
    scheduled.prepare(config(), Path("results/demo"))
    assert seen == [["plain", "probe_hardware", "check_environment"], ([earlier], Path())]
    assert os.environ[journal.VARIABLE] == str(tmp_path / "results/demo/slurm/jobs.jsonl")
    assert capsys.readouterr().err == "servemark: asked\n"


@pytest.mark.parametrize("module", [preflight, leftovers])
def test_refusal_of_executor_is_a_config_error(tmp_path, monkeypatch, module):
    monkeypatch.chdir(tmp_path)

    def refuse(*_, **__):
        raise GuardedError("It is so.", do="Do this.", reason="slurm_refused")

    monkeypatch.setattr(preflight, "check", lambda requests, say, **_: None)
    monkeypatch.setattr(module, "check" if module is preflight else "cancel", refuse)
    with pytest.raises(ConfigError) as caught:
        scheduled.prepare(config(), Path("results/demo"))
    assert (caught.value.exit_code, caught.value.reason, caught.value.do) == (2, "slurm_refused", "Do this.")


def test_messages_of_executor_name_configuration_keys():
    theirs = {*Site.model_fields, *(f"small_jobs.{name}" for name in SmallJobs.model_fields), "topology.nodes"}
    keys = {name: text.split(", ") for name, text in scheduled.KEYS.items() if name not in ("speaker", "place")}
    assert set(scheduled.KEYS) == set(TERMS) and {key for names in keys.values() for key in names} <= theirs


def test_messages_before_a_run_use_servemarks_terms(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make = on_path(tmp_path / "bin", monkeypatch)
    for tool in preflight.TOOLS:
        make(tool, "")
    make("sbatch", "echo 'Requested time limit is invalid' >&2; exit 1")
    with pytest.raises(ConfigError) as caught:
        scheduled.prepare(config(max_minutes=5), Path("results/demo"))
    assert "max_minutes" in caught.value.what and "cluster file" in caught.value.do
