"""Faults of Slurm: each run ends in bounded time, prints the reason, leaves nothing, and a plain rerun completes it."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator

import psutil
import pytest
from fault_table import Injury
from injuring import END_S, assert_completed, begin, measuring, occupy
from sandbox import Sandbox
from scheduled_checkout import GONE_S, RUN_S, ScheduledCheckout

from integration.harness import wait_until
from servemark.supervisor import process_request
from snakemake_executor_plugin_slurm_guarded import preflight

pytestmark = [pytest.mark.faults, pytest.mark.usefixtures("queue_left_empty")]
core = pytest.mark.core


# Jobs that Slurm ends


@pytest.mark.parametrize("when", ["loading", pytest.param("measuring", marks=core)])
def test_cancelled_by_a_user(checkout: ScheduledCheckout, injury: Injury, when: str) -> None:
    injury.of(f"scancel by the user while {when}", r"deployment a \(job \d+\): cancelled by user root after \S+")
    if when == "loading":
        running, before = begin(checkout, STANDIN_START_S="80"), {}
        checkout.wait_for_progress("waiting for vLLM", seconds=RUN_S)
        job = checkout.job()
    else:
        running, job, before = measuring(checkout)
    since = time.monotonic()
    checkout.cluster.run(["scancel", job["job_id"]], check=True)
    assert injury.ends(checkout, running, END_S, since, GONE_S).rc == 1
    assert_completed(checkout, injury, before)


@pytest.mark.parametrize("when", ["loading", "measuring"])
def test_job_runs_into_its_time_limit(checkout: ScheduledCheckout, injury: Injury, when: str) -> None:
    injury.of(f"wall time over while {when}", r"a/chat-c2-r1 +out_of_time", "out_of_time")
    # The supervisor ends everything 33 s before: stop 3 s + 30 s for the records.
    checkout.site["max_minutes"] = 1 if when == "loading" else 2
    if when == "loading":
        checkout.config["timeouts"] |= {"start": 300.0, "stall": 300.0}
        running, before = begin(checkout, STANDIN_START_S="200"), {}
        checkout.wait_for_progress("waiting for vLLM", seconds=RUN_S)
    else:
        running, _, before = measuring(checkout)
    done = injury.ends(checkout, running, 120, time.monotonic(), GONE_S)
    assert done.rc == 1
    assert [entry["state"] for entry in checkout.journal("ended")] == ["COMPLETED"], "the supervisor ended it before Slurm did"
    failure = checkout.record("deployments/a/stopped.json")["failure"]
    assert failure["reason"] == "out_of_time" and "minutes_per_point" in failure["remedy"], failure
    assert "out_of_time" in checkout.report()
    checkout.site["max_minutes"] = 10
    assert_completed(checkout, injury, before)


@pytest.mark.parametrize("partition", ["low-cancel", "low-requeue"])
def test_preempted(checkout: ScheduledCheckout, injury: Injury, partition: str) -> None:
    injury.of(f"preempted, {partition}", r"deployment a \(job \d+\): preempted after \S+")
    checkout.site["partition"] = partition
    running, _, before = measuring(checkout)
    since = time.monotonic()
    occupy(checkout.cluster, "high", 3)
    assert injury.ends(checkout, running, END_S, since, GONE_S).rc == 1
    assert_completed(checkout, injury, before)


def test_preempted_and_requeued_by_slurm(checkout: ScheduledCheckout, injury: Injury) -> None:
    injury.of(
        "preempted, and Slurm may requeue",
        r"4 VALID|2 VALID|2 SUSPECT|1 VALID, 1 SUSPECT",
        "continues by itself in a new attempt",
    )
    checkout.site["partition"] = "low-requeue"
    running, job, before = measuring(checkout, "--slurm-guarded-requeue")
    since = time.monotonic()
    occupy(checkout.cluster, "high", 3)
    wait_until(lambda: len(checkout.attempts("a")) == 2, 90, "Slurm has started it again")
    checkout.hang(False)
    assert injury.ends(checkout, running, 150, since, GONE_S).rc == 0
    after = checkout.started_at("a")
    assert after["chat-c1-r1"] == before["chat-c1-r1"] and len(after) == 2
    owners = [json.loads((path / "supervisor-spec.json").read_text())["owner"] for path in checkout.attempts("a")]
    assert owners == [f"job {job['job_id']}", f"job {job['job_id']}, start 2"]
    starts = checkout.record("deployments/a/accounting.json")["jobs"]
    assert [(start["job_id"], start["state"]) for start in starts] == [
        (job["job_id"], "PREEMPTED"),
        (job["job_id"], "COMPLETED"),
    ]


# Nodes


def set_node(cluster: Sandbox, node: str, state: str) -> None:
    reason = ["reason=test"] if state == "drain" else []
    cluster.run(["scontrol", "update", f"nodename={node}", f"state={state}", *reason], check=True)


def test_nodes_are_drained(checkout: ScheduledCheckout, injury: Injury) -> None:
    injury.of("one node drained before, the other while it runs", r"job \d+ COMPLETED", "continues")
    try:
        set_node(checkout.cluster, "node1", "drain")
        running, job, _ = measuring(checkout)
        assert job["nodes"] == "node2"
        since = time.monotonic()
        set_node(checkout.cluster, "node2", "drain")
        checkout.hang(False)
        assert injury.ends(checkout, running, RUN_S, since, GONE_S).rc == 0
    finally:
        for node in ("node1", "node2"):
            set_node(checkout.cluster, node, "resume")
        checkout.cluster.wait_idle()


def test_lost_slurmd(checkout: ScheduledCheckout, injury: Injury) -> None:
    """The processes survive. slurmctld informs the supervisor's sruns of the lost node, so supervisor and stages end. A server
    that did not notice its srun's end ends after some time without a heartbeat of its supervisor."""
    injury.of("slurmd killed, its processes survive", r"deployment a \(job \d+\): node \S+ failed after \S+")
    running, job, before = measuring(checkout)
    lost = job["nodes"]
    since = time.monotonic()
    checkout.cluster.kill_slurmd(lost)
    try:
        time.sleep(3)
        assert checkout.where("servemark.supervisor").keys() == {lost}, "the processes must outlive slurmd for this test"
        assert injury.ends(checkout, running, 120, since, None).rc == 1
        wait_until(lambda: not checkout.where("snakemake"), GONE_S, "all writers of records have ended")
        checkout.hang(False)
        injury.completed_by(checkout.run())
        assert checkout.started_at("a")["chat-c1-r1"] == before["chat-c1-r1"]
        assert checkout.record("deployments/a/accounting.json")["jobs"][-1]["nodes"] != [lost]
        [record] = [record for name, record in checkout.points("a").items() if name not in before]
        assert record["attempt"].endswith("/002") and record["verdict"] in ("VALID", "SUSPECT")
        wait_until(
            lambda: not checkout.where("servemark"),
            process_request.SILENCE_S + GONE_S,
            "its processes have ended, without slurmd",
        )
        injury.left = "nothing"
    finally:
        checkout.cluster.start_slurmd(lost)
        checkout.cluster.wait_idle()


def test_frozen_node_wakes_up_after_a_rerun_elsewhere(checkout: ScheduledCheckout, injury: Injury) -> None:
    """All processes are frozen while Slurm declares the node lost and a rerun completes elsewhere; then they resume."""
    injury.of("node frozen, given up, and back after the rerun", r"deployment a \(job \d+\): node \S+ failed after \S+")
    running, job, before = measuring(checkout)
    lost = job["nodes"]
    frozen = [process for node, process in checkout.of_ours() if node == lost]
    since = time.monotonic()
    checkout.cluster.kill_slurmd(lost)
    try:
        for process in frozen:
            process.suspend()
        assert injury.ends(checkout, running, 120, since, None).rc == 1
        checkout.hang(False)
        injury.completed_by(checkout.run())
        done = checkout.digests("a") | checkout.started_at("a")
        assert checkout.started_at("a")["chat-c1-r1"] == before["chat-c1-r1"]
        for process in frozen:
            with contextlib.suppress(psutil.Error):
                process.resume()
        checkout.assert_nothing_left(process_request.SILENCE_S + GONE_S)
        assert checkout.digests("a") | checkout.started_at("a") == done, "resumed processes have changed the newer run's records"
        injury.left = "nothing"
    finally:
        for process in frozen:
            with contextlib.suppress(psutil.Error):
                process.resume()
        checkout.cluster.start_slurmd(lost)
        checkout.cluster.wait_idle()


# Slurm's own daemons


@contextlib.contextmanager
def controller_away(cluster: Sandbox, seconds: float) -> Iterator[None]:
    begin_ = time.monotonic()
    cluster.stop_slurmctld()
    try:
        yield
        time.sleep(max(0.0, begin_ + seconds - time.monotonic()))
    finally:
        cluster.start_slurmctld()


@pytest.mark.parametrize("when", ["submitting", "measuring"])
def test_slurmctld_is_down_for_45_s(checkout: ScheduledCheckout, injury: Injury, when: str) -> None:
    injury.of(f"slurmctld down 45 s while {when}", r"Slurm responds again after \d+ s", "waits, reports it, continues")
    if when == "submitting":
        running = begin(checkout)
        checkout.wait_for_progress("1 ranks", seconds=60)
        before = {}
    else:
        running, _, before = measuring(checkout)
    since = time.monotonic()
    with controller_away(checkout.cluster, 45):
        checkout.hang(False)
        wait_until(lambda: "Slurm does not respond" in running.text, 40, "the run reports that Slurm does not respond")
    assert injury.ends(checkout, running, 45 + RUN_S, since, GONE_S).rc == 0
    assert len(checkout.journal("submitted")) == 1 and len(checkout.attempts("a")) == 1
    after = checkout.started_at("a")
    assert {name: after[name] for name in before} == before


def test_slurmdbd_is_down(checkout: ScheduledCheckout, injury: Injury) -> None:
    injury.of(
        "slurmdbd down from before the submission to after the end",
        r"job \d+ COMPLETED",
        "continues; accounting by the controller",
    )
    checkout.cluster.stop_slurmdbd()
    try:
        since = time.monotonic()
        running = begin(checkout)
        assert injury.ends(checkout, running, RUN_S, since, GONE_S).rc == 0
        record = checkout.record("deployments/a/accounting.json")
        assert (record["source"], record["jobs"][0]["state"], record["jobs"][0]["gpus"]) == ("scontrol", "COMPLETED", 4)
        assert record["trouble"]
    finally:
        checkout.cluster.start_slurmdbd()


# Refusals


@core
@pytest.mark.parametrize(("key", "value"), [("account", "nobodys"), ("partition", "nowhere"), ("qos", "golden"), ("gpus_per_node", 99)])
def test_refused_before_submission(checkout: ScheduledCheckout, injury: Injury, key: str, value: object) -> None:
    injury.of(f"{key}: {value}", rf"Slurm refuses the request \(see [\w, .]*{key}[\w, .]*\): .+")
    begin_ = time.monotonic()
    checkout.site[key] = value
    done = injury.ends(checkout, begin(checkout), 40, begin_, GONE_S)
    assert done.rc == 2
    # The preflight check also notes its empty jobs.
    runs = [entry["run"] for entry in checkout.journal("run") if not entry["run"].startswith(preflight.NAME)]
    assert not runs and not checkout.attempts("a")
    checkout.site[key] = {"account": "research", "partition": "batch", "qos": "normal", "gpus_per_node": 4}[key]
    # The refusal would come before the rules: it is enough that the run starts.
    injury.completed_by(checkout.run("--until", "confirm_plans"))


def test_refused_at_submission_of_the_group(checkout: ScheduledCheckout, injury: Injury) -> None:
    injury.of("partition closed between check and submission", r"deployment a: could not be submitted: Slurm refused it: .+")
    running = begin(checkout)
    checkout.wait_for_progress("1 ranks", seconds=60)
    since = time.monotonic()
    checkout.cluster.run(["scontrol", "update", "PartitionName=batch", "State=INACTIVE"], check=True)
    try:
        assert injury.ends(checkout, running, 30, since, GONE_S).rc == 1
        assert not checkout.journal("submitted")
    finally:
        checkout.cluster.run(["scontrol", "update", "PartitionName=batch", "State=UP"], check=True)
    assert_completed(checkout, injury, {})
