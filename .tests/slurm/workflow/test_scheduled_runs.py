"""Whole runs through Slurm without faults: places of jobs, requests, no repeated work."""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import psutil
import pytest
from sandbox import Sandbox
from scheduled_checkout import RUN_S, ScheduledCheckout

from integration.harness import Finished, wait_until

# In place of a site's environment modules, which /etc/profile.d defines for every login shell.
MODULES = 'module() { [ "$1" = load ] && export STANDIN_MODULE="$STANDIN_MODULE$2;"; }\n'


def limit_minutes(checkout: ScheduledCheckout, job: str) -> int:
    """Return the time limit of a job that slurmctld still lists, minutes."""
    text = checkout.cluster.run(["scontrol", "show", "job", job], check=True).stdout
    hours, minutes, _ = re.search(r"TimeLimit=(\d+):(\d+):(\d+)", text).groups()
    return 60 * int(hours) + int(minutes)


def submitted(checkout: ScheduledCheckout, label: str) -> list[str]:
    """Return the ids of the jobs with this label, oldest first."""
    return [entry["job"] for entry in checkout.journal("submitted") if entry["label"] == label]


def environment_of(process: psutil.Process) -> dict[str, str]:
    words = Path(f"/proc/{process.pid}/environ").read_bytes().decode().split("\0")
    return dict(word.split("=", 1) for word in words if "=" in word)


@dataclass
class Two:
    """A run of two deployments, and observations while it ran."""

    checkout: ScheduledCheckout
    done: Finished
    shown_while_running: str
    server: dict[str, str]
    node: str


@pytest.fixture(scope="module")
def two(module_checkouts: Callable[..., ScheduledCheckout]) -> Two:
    checkout = module_checkouts()
    home = checkout.path / "home"
    home.mkdir()
    (home / ".bash_profile").write_text(MODULES)
    checkout.site |= {
        "account": "teaching",
        "variables": {"NCCL_SOCKET_IFNAME": "hsn"},
        "modules": ["fabric/1.2", "gcc/13"],
    }
    checkout.config["deployments"]["a"]["variables"] = {"OF_THE_DEPLOYMENT": "1"}
    running = checkout.start(HOME=str(home), STANDIN_TOKEN_S="0.1")
    checkout.wait_for_progress("chat-c1-r1: 6 requests", subject="a", seconds=RUN_S)
    [(node, servers)] = [
        (node, found) for node, found in checkout.where("entrypoints.cli.main serve").items()
        if any("--max-model-len 512" in " ".join(process.cmdline()) for process in found)
    ]  # fmt: skip
    server = environment_of(servers[-1])
    line = re.compile(r"^\d:\d\d:\d\d  a +measure +chat-c1-r1: ", re.MULTILINE)
    text = wait_until(lambda: (shown := running.text) and line.search(shown) and shown, 30, "the line is shown")
    assert running.process.poll() is None
    return Two(checkout, running.wait(RUN_S), text, server, node)


def test_two_deployments_are_measured_in_parallel_on_two_nodes(two: Two) -> None:
    assert two.done.rc == 0, two.done.text
    two.checkout.assert_nothing_left(5)
    rows = two.checkout.rows()
    assert {key[0] for key in rows} == {"a", "b"} and {row["verdict"] for row in rows.values()} <= {"VALID", "SUSPECT"}
    times = {}
    for name in "ab":
        [job] = two.checkout.record(f"deployments/{name}/accounting.json")["jobs"]
        times[name] = (datetime.fromisoformat(job["started_at"]), datetime.fromisoformat(job["ended_at"]), job["nodes"])
    assert times["a"][0] < times["b"][1] and times["b"][0] < times["a"][1], times
    assert sorted(times["a"][2] + times["b"][2]) == ["node1", "node2"]
    measured = [when for name in "ab" for when in two.checkout.started_at(name).values()]
    a, b = two.checkout.started_at("a"), two.checkout.started_at("b")
    assert max(min(a.values()), min(b.values())) < min(max(a.values()), max(b.values())), measured


def test_only_stages_that_need_nodes_are_jobs(two: Two, planned: ScheduledCheckout) -> None:
    assert {e["name"] for e in planned.journal("submitted")} == {"probe_hardware", "check_environment"}
    every = two.checkout.journal("submitted")
    # The environment is checked again, because the cluster file names modules.
    labels = ["check_environment (environment=standin)", "deployment a", "deployment b"]
    assert sorted(entry["label"] for entry in every) == labels
    jobs = [entry for entry in every if entry["label"].startswith("deployment ")]
    assert {entry["kind"] for entry in jobs} == {"group"}
    live = {"start_cluster", "check_fabric", "serve_model", "await_ready", "measure", "stop_deployment"}
    for entry in jobs:
        script = two.checkout.cluster.run(["scontrol", "write", "batch_script", entry["job"], "-"], check=True).stdout
        rules = re.search(r"--allowed-rules ([\w ]+?) -", script)
        assert rules and set(rules[1].split()) == live, script


def test_variables_and_modules_of_cluster_file_reach_the_server(two: Two) -> None:
    assert two.node in ("node1", "node2")
    assert two.server["NCCL_SOCKET_IFNAME"] == "hsn" and two.server["OF_THE_DEPLOYMENT"] == "1"
    assert two.server["STANDIN_MODULE"] == "fabric/1.2;gcc/13;"
    assert two.server["CUDA_VISIBLE_DEVICES"] == "0"


def test_time_limit_depends_on_the_missing_points(two: Two) -> None:
    for name in "ab":
        [job] = submitted(two.checkout, f"deployment {name}")
        assert limit_minutes(two.checkout, job) == 5 + 2 * 1


def test_progress_of_a_job_is_shown_while_it_runs(two: Two) -> None:
    shown = [line for line in two.shown_while_running.splitlines() if re.match(r"\d:\d\d:\d\d  a ", line)]
    stages = [line.split()[2] for line in shown]
    stages = [stage for stage in stages if stage != "queue"]  # printed if Slurm needs more than a moment
    assert list(dict.fromkeys(stages)) == ["plan_deployment", "start_cluster", "serve_model", "await_ready", "measure"]


def test_accounting_has_the_jobs(two: Two) -> None:
    for name in "ab":
        record = two.checkout.record(f"deployments/{name}/accounting.json")
        [job] = record["jobs"]
        assert (record["scheduler"], record["source"], job["state"]) == ("slurm", "sacct", "COMPLETED")
        assert job["job_id"] == submitted(two.checkout, f"deployment {name}")[0]
        assert (job["account"], job["partition"], job["gpus"]) == ("teaching", "batch", 4)
        assert job["attempts"] and record["gpu_hours_allocated"] > 0


def test_second_run_does_nothing(two: Two) -> None:
    before, jobs = two.checkout.digests("a") | two.checkout.digests("b"), len(two.checkout.journal("submitted"))
    again = two.checkout.run()
    assert again.rc == 0 and "Nothing to be done" in again.text, again.text
    assert again.seconds < 25 and len(two.checkout.journal("submitted")) == jobs
    assert two.checkout.digests("a") | two.checkout.digests("b") == before


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param({"partition": "mixed", "gpus_per_node": 0}, id="nodes-alike"),
        pytest.param({"partition": "mixed", "client_constraint": "cpu"}, id="by-feature", marks=pytest.mark.full),
        pytest.param({"client_partition": "client"}, id="by-partition", marks=pytest.mark.full),
    ],
)
def test_servers_over_two_nodes_and_the_client_on_a_third(checkout: ScheduledCheckout, asked: dict[str, object]) -> None:
    checkout.keep("a")
    checkout.site |= {"local_models": "/tmp/models", **asked}
    checkout.config["deployments"]["a"]["topology"] = {"nodes": 2, "tensor_parallel": 2, "client": "own"}
    running = checkout.start(STANDIN_TOKEN_S="0.2")
    checkout.wait_for_progress("chat-c1-r1: 6 requests", seconds=RUN_S)
    servers, clients = checkout.where("entrypoints.cli.main serve"), checkout.where("client_server.py")
    served = {argument for found in servers.values() for process in found for argument in process.cmdline()}
    done = running.wait(RUN_S)

    assert done.rc == 0, done.text
    checkout.assert_nothing_left(5)
    digest = checkout.record("models/tiny/manifest.json")["digest"]
    assert f"/tmp/models/servemark-{os.getuid()}/{digest[:16]}" in served
    # The cluster is that of the previous test; its copy on a node is used again.
    told = (checkout.results / "progress.jsonl").read_text()
    copied = re.findall(r"the model's copy on (\w+): (?:copied in|already there)", told)
    assert sorted(copied) == sorted(servers) and len(copied) == 2
    startup = checkout.record("deployments/a/startup.json")
    *of_servers, own = [node["name"] for node in startup["nodes"]]
    assert sorted([*of_servers, own]) == ["client1", "node1", "node2"]
    assert own == "client1" or asked.get("gpus_per_node") == 0
    assert set(servers) == set(of_servers) and clients.keys() <= {own} and startup["client_node"] == own
    assert {record["client_node"] for record in checkout.points("a").values()} == {own}
    fabric = checkout.record("deployments/a/fabric.json")
    assert (fabric["needed"], fabric["ranks"], fabric["failure"]) == (True, 2, None)
    daemons = {daemon["name"]: daemon["node"] for daemon in checkout.record("deployments/a/stopped.json")["daemons"]}
    assert daemons.pop("client-server") == own
    assert set(daemons) == {"telemetry", "telemetry-n1", "server", "server-n1"} and set(daemons.values()) == set(of_servers)
    [job] = checkout.record("deployments/a/accounting.json")["jobs"]
    assert sorted(job["nodes"]) == ["client1", "node1", "node2"] and job["gpus"] == 8
    assert not list(checkout.path.glob("slurm-*.out")), "its output goes to the folder of all jobs"


def test_each_start_of_a_deployment_is_a_job_of_its_own(checkout: ScheduledCheckout) -> None:
    checkout.keep("a")
    checkout.config["workloads"]["chat"] |= {"concurrency": [1], "repetitions": 2}
    checkout.config["restarts"] = 1

    done = checkout.run()

    assert done.rc == 0, done.text
    checkout.assert_nothing_left(5)
    jobs = {name: submitted(checkout, f"deployment {name}") for name in ("a", "a+1")}
    assert [len(found) for found in jobs.values()] == [1, 1] and jobs["a"] != jobs["a+1"]
    for name, [job] in jobs.items():
        assert [entry["job_id"] for entry in checkout.record(f"deployments/{name}/accounting.json")["jobs"]] == [job]
    rows = checkout.rows()
    assert [(name, row["repetition"], row["restart"], row["job_id"]) for (name, _), row in sorted(rows.items())] == [
        ("a", "1", "0", jobs["a"][0]),
        ("a", "2", "1", jobs["a+1"][0]),
    ]


def test_short_jobs_share_a_node_and_report_all_of_it(fresh: ScheduledCheckout) -> None:
    others = [
        fresh.cluster.run(
            ["sbatch", "--parsable", "--account=research", f"--nodelist={node}", "--gres=gpu:3", "--cpus-per-task=12", "--mem=40000",
             "--wrap", "sleep 600"], check=True,
        ).stdout.strip()
        for node in ("node1", "node2")
    ]  # fmt: skip
    try:
        done = fresh.run("--until", "check_environment", seconds=90)
    finally:
        fresh.cluster.run(["scancel", *others])
    assert done.rc == 0, done.text
    jobs = {entry["name"]: entry["job"] for entry in fresh.journal("submitted")}
    asked = {"probe_hardware": "cpu=1,mem=2G", "check_environment": "cpu=2,mem=8G"}
    assert set(jobs) == set(asked)
    for rule, tres in asked.items():
        text = fresh.cluster.run(["scontrol", "show", "job", jobs[rule]], check=True).stdout
        assert f"TRES={tres},node=1" in text and "gres/gpu=1" in text, text
        # Slurm 26.05 prints Exclusive=NO; earlier releases say it with OverSubscribe=OK.
        assert "Exclusive=NO" in text or "OverSubscribe=OK" in text, text
    found = fresh.record("hardware.json")
    # The sandbox does not confine cores, and its GPUs are fake.
    assert (found["cpu_count"], found["gpus"], found["worked_out"]) == (os.cpu_count(), [], {})
    fresh.assert_nothing_left(5)


def test_environment_is_built_in_a_job_if_configured(fresh: ScheduledCheckout) -> None:
    fresh.site |= {
        "build_on": "job",
        "stage_on": "job",
        "small_jobs": {"minutes": 2, "partition": "short", "account": "teaching"},
    }
    done = fresh.run("--until", "build_environment", "stage_weights")
    assert done.rc == 0, done.text
    jobs = {entry["name"]: entry["job"] for entry in fresh.journal("submitted")}
    assert set(jobs) == {"probe_hardware", "build_environment", "stage_weights"}
    for job in jobs.values():
        text = fresh.cluster.run(["scontrol", "show", "job", job], check=True).stdout
        assert "Partition=short" in text and "Account=teaching" in text and "TimeLimit=00:02:00" in text, text
    fresh.assert_nothing_left(5)


@dataclass
class Short:
    """A run with an allocation too short for the last of its five points, and the plain rerun."""

    checkout: ScheduledCheckout
    first: Finished
    before: dict[str, str]
    report: str
    rejected: dict[str, str]


class Holding(threading.Thread):
    """Delays the fourth point until the allocation has too little time left for another one."""

    def __init__(self, checkout: ScheduledCheckout):
        super().__init__(daemon=True)
        self.checkout, self.trouble = checkout, ""

    def run(self) -> None:
        try:
            self.checkout.wait_for_progress("late-c1-r1: 6 requests", seconds=100)
            self.checkout.hang(True)
            begin = time.time()
            end = datetime.fromisoformat(self.checkout.record("deployments/a/ready.json")["ends_at"]).timestamp()
            [attempt] = self.checkout.attempts("a")
            margin = json.loads((attempt / "supervisor-spec.json").read_text())["end_margin_s"]
            until = end - margin - 0.3 * (end - margin - begin)
            time.sleep(max(0.0, until - time.time()))
        except Exception as error:
            self.trouble = f"{type(error).__name__}: {error}"
        finally:
            self.checkout.hang(False)


@pytest.fixture(scope="module")
def short_run(module_checkouts: Callable[..., ScheduledCheckout], plain: Sandbox) -> Iterator[Callable[[], Short]]:
    """Start this run before the other tests, because it takes as long as its allocation; on a cluster without accounting."""
    checkout = module_checkouts(plain)
    checkout.keep("a")
    checkout.inject("none")
    workload = checkout.config["workloads"]["chat"]
    checkout.config["workloads"] = {
        "early": workload | {"concurrency": [1], "repetitions": 3},
        # With another length: equal points with different names would be measured once.
        "late": workload | {"concurrency": [1, 2], "input_tokens": 9},
    }
    checkout.config["order"] = "grouped"
    checkout.config["timeouts"] |= {"no_progress": 120.0, "point": 200.0}
    checkout.site |= {"partition": "short", "minutes_to_start": 1, "minutes_per_point": 1}
    running = checkout.start(STANDIN_TOKEN_S="0.02")
    holding = Holding(checkout)
    holding.start()

    def get() -> Short:
        first = running.wait(240)
        assert not holding.trouble, holding.trouble + first.text
        rejected = {name: record["reasons"][0]["code"] for name, record in checkout.rejected().items()}
        return Short(checkout, first, checkout.started_at("a"), checkout.report(), rejected)

    yield get
    checkout.hang(False)
    holding.join(120)


@pytest.fixture(scope="module", autouse=True)
def _begin_the_long_one(short_run: Callable[[], Short]) -> None:
    """Start the long run before the first test."""


def test_run_stops_between_points_before_its_time_limit(
    short_run: Callable[[], Short],
) -> None:
    run = short_run()
    checkout = run.checkout
    assert run.first.rc == 1 and "out_of_time" in run.first.text, run.first.text
    assert "did not start the next one" in run.first.text
    checkout.assert_nothing_left(5)
    [job] = submitted(checkout, "deployment a")
    assert limit_minutes(checkout, job) == 2, "1 + 5 x 1 minutes, but the partition gives 2"
    assert run.rejected == {"a/late-c2-r1.1": "out_of_time"}
    assert len(run.before) == 4 and "out_of_time" in run.report

    again = checkout.run()

    assert again.rc == 0, again.text
    after = checkout.started_at("a")
    assert {name for name, when in after.items() if run.before.get(name) != when} == {"late-c2-r1"}
    assert len(after) == 5 and "out_of_time" not in checkout.record("check.json")["holes"]
    second = submitted(checkout, "deployment a")[-1]
    assert second != job and limit_minutes(checkout, second) == 2
    # The readiness check, a warm-up and the six requests of the one point.
    [served] = [log.read_text().count("POST /v1/completions") for log in [checkout.attempts("a")[-1] / "server.log"]]
    assert served == 8
    accounting = checkout.record("deployments/a/accounting.json")
    assert [entry["job_id"] for entry in accounting["jobs"]] == [job, second]
    assert accounting["source"] == "scontrol" and {entry["state"] for entry in accounting["jobs"]} == {"COMPLETED"}
    checkout.assert_nothing_left(5)
