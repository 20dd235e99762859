"""The executor and the guard on a real Slurm: every end is reported in bounded time, and no job stays in the queue."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from executor_run import LIVE, SNAKEMAKE, Run
from sandbox import Sandbox

from snakemake_executor_plugin_slurm_guarded import job_accounts, journal, preflight

# Three nested starts of Snakemake on a busy machine. The tested times have tighter limits.
START_S = 60.0
NewRun = Callable[[Sandbox], Run]
PROFILE = ["--profile", str(Path(__file__).parents[2] / "profiles/slurm"), "--latency-wait", "5"]


def start(run: Run, *targets: str, seconds: float = 1, env: dict[str, str] | None = None, **request: object) -> Run:
    asked = {"SECONDS": str(seconds), "REQUEST": json.dumps(request)} | (env or {})
    return run.start([str(SNAKEMAKE), *PROFILE, "--", *targets], asked)


def wrapper(run: Run, tool: str, body: str) -> dict[str, str]:
    """Return a PATH with a shell script in place of ``tool``; ``$REAL`` is the real one."""
    folder = run.folder / "bin"
    folder.mkdir(exist_ok=True)
    script = folder / tool
    script.write_text(f'#!/bin/sh\nREAL=/usr/bin/{tool}\necho x >> "$0.calls"\n{body}\n')
    script.chmod(0o755)
    return {"PATH": f"{folder}:{run.cluster.environment()['PATH']}"}


def noted_states(run: Run) -> set[str]:
    """Return the final states of the run's jobs by the journal, the only source after a Slurm without accounting has dropped them."""
    entries = list(journal.read(run.jobs_file))
    return {job_accounts.from_journal(entries, entry["job"]).state for entry in run.events("submitted")}


@pytest.fixture(scope="module")
def out_of_time(plain: Sandbox) -> Run:
    """Start this run before the other tests: Slurm's shortest time limit is a minute."""
    folder = plain.folder / "work/out-of-time"
    folder.mkdir(parents=True)
    (folder / "Snakefile").write_text(Path(__file__).with_name("executor.smk").read_text())
    return start(Run(plain, folder), "done.a", seconds=300, partition="short", minutes=1)


def test_two_nodes_in_one_group_job(out_of_time: Run, plain: Sandbox, new_run: NewRun) -> None:
    request = {"partition": "batch", "nodes": 2, "gres": "gpu:4", "minutes": 7, "extra": "--nice=1"}
    run = start(new_run(plain), "group.x", **request)
    assert run.end(START_S) == 0, run.said
    text = (run.folder / "group.x").read_text()
    for fact in ("NumNodes=2", "TimeLimit=00:07:00", "GRES=gpu:4(IDX:0-3)", "Requeue=0", "Partition=batch"):
        assert fact in text, text
    assert sorted(re.findall(r"^(node\d [\d,]+)$", text, re.MULTILINE)) == ["node1 0,1,2,3", "node2 0,1,2,3"]
    [submitted], [ended] = run.events("submitted"), run.events("ended")
    assert submitted["label"] == "deployment x" and submitted["wildcards"] == {"deployment": "x"}
    assert (ended["state"], ended["success"], ended["exit_code"], ended["nodes"]) == ("COMPLETED", True, 0, "node[1-2]")
    assert 1 <= ended["elapsed_s"] < START_S and ended["queue_wait_s"] is not None
    assert Path(submitted["log"]).stat().st_size > 0
    assert "warning" not in run.said.lower(), run.said
    run.assert_clear(6)
    assert run.guard_log == ""


def test_whole_nodes_and_a_single_job(accounted: Sandbox, new_run: NewRun) -> None:
    request = {
        "account": "research",
        "qos": "normal",
        "constraint": "gpu",
        "nodes": 2,
        "gres": "gpu:4",
        "minutes": 5,
        "exclusive": True,
    }
    whole, small = (
        start(new_run(accounted), "group.x", **request),
        start(new_run(accounted), "done.a", cpus=2, memory_mb=100),
    )
    assert (whole.end(START_S), small.end(START_S)) == (0, 0), whole.said + small.said
    text = (whole.folder / "group.x").read_text()
    for fact in ("NumCPUs=32", "mem=125G", "Account=research", "QOS=normal", "Features=gpu", "OverSubscribe=NO"):
        assert fact in text, text
    whole.assert_clear(3)


def test_cancelled_by_a_user(plain: Sandbox, accounted: Sandbox, new_run: NewRun) -> None:
    runs = [start(new_run(cluster), "group.x", seconds=100) for cluster in (plain, accounted)]
    for run, who in zip(runs, ("cancelled after", "cancelled by user root after"), strict=True):
        job = run.job("RUNNING")
        time.sleep(1.5)
        run.cluster.run(["scancel", job])
        assert run.end(20) == 1
        assert f"deployment x (job {job}): {who} 0:" in run.said and f"/{job}.log" in run.said, run.said
        assert [entry["state"] for entry in run.events("ended")] == ["CANCELLED"]
        run.assert_clear(6)


def test_failed(plain: Sandbox, new_run: NewRun) -> None:
    run = start(new_run(plain), "done.a", "done.b", seconds="1; exit 3 #")
    assert run.end(START_S) == 1
    assert len(re.findall(r"single \(name=[ab]\) \(job \d+\): failed with exit code 1 after 0:\d\d on node", run.said)) == 2, run.said


@pytest.mark.faults
@pytest.mark.parametrize("partition", ["low-cancel", "low-requeue"])
def test_preempted(accounted: Sandbox, new_run: NewRun, partition: str) -> None:
    run = start(new_run(accounted), "group.x", seconds=100, partition=partition, nodes=2, exclusive=True)
    job = run.job("RUNNING")
    time.sleep(1.5)
    above = accounted.run(["sbatch", "--parsable", "-p", "high", "-N2", "--exclusive", "--wrap", "sleep 2"], check=True).stdout.strip()
    assert run.end(START_S) == 1
    assert f"deployment x (job {job}): preempted after 0:" in run.said, run.said
    run.assert_clear(6)
    accounted.run(["scancel", above])


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        ({"partition": "nowhere"}, "invalid partition"),
        ({"account": "nobodys"}, "Invalid account"),
        ({"qos": "golden"}, "Invalid qos"),
        ({"nodes": 40}, "More processors requested"),
        ({"gres": "gpu:99"}, "not available"),
        ({"extra": "'"}, "No closing quotation"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_refused(accounted: Sandbox, new_run: NewRun, request_: dict[str, object], words: str) -> None:
    run = start(new_run(accounted), "group.x", **request_)
    assert run.end(START_S) == 1
    assert words.lower() in run.said.lower() and "deployment x: " in run.said, run.said
    run.assert_clear(6)


@pytest.mark.faults
@pytest.mark.parametrize("when", ["submitting", "running"])
def test_controller_away_for_20_s(plain: Sandbox, new_run: NewRun, when: str) -> None:
    run = new_run(plain)
    if when == "running":
        # A job that runs no Slurm command itself; the tests of the whole workflow cover such jobs.
        start(run, "done.x", seconds=25).job("RUNNING")
    plain.stop_slurmctld()
    try:
        if when == "submitting":
            start(run, "group.x")
        time.sleep(20)
        assert run.process and run.process.poll() is None, run.said
    finally:
        plain.start_slurmctld()
    assert run.end(START_S) == 0, run.said
    assert run.said.count("Slurm does not respond") == 1 and run.said.count("Slurm responds again after") == 1, run.said
    assert len(run.events("submitted")) == 1 and len(run.events("ended")) == 1
    run.assert_clear(6)


@pytest.mark.faults
def test_response_to_a_submission_is_lost(plain: Sandbox, new_run: NewRun) -> None:
    run = new_run(plain)
    lose = '$REAL "$@"; [ $(wc -l < "$0.calls") -gt 1 ] || { echo "sbatch: error: Socket timed out" >&2; exit 1; }'
    start(run, "done.a", env=wrapper(run, "sbatch", lose))
    assert run.end(START_S) == 0, run.said
    name = run.events("run")[0]["run"]
    assert [job["name"] for job in plain.jobs()].count(name) == 1
    assert len((run.folder / "bin/sbatch.calls").read_text().split()) == 1


@pytest.mark.parametrize(
    ("number", "state"),
    [(signal.SIGINT, "RUNNING"), (signal.SIGINT, "PENDING"), (signal.SIGTERM, "RUNNING"), (signal.SIGHUP, "PENDING")],
    ids=lambda value: value.name if isinstance(value, signal.Signals) else value,
)
@pytest.mark.faults
def test_interrupted(plain: Sandbox, new_run: NewRun, number: int, state: str) -> None:
    waits = {"extra": "--begin=now+1hour"} if state == "PENDING" else {}
    run = start(new_run(plain), "group.x", "group.y", seconds=100, **waits)
    run.job(state)
    run.signal(number)
    assert run.end(10) in (1, 130)
    run.assert_clear(8)
    assert not list(run.folder.glob(".snakemake/locks/*"))
    assert noted_states(run) == {"CANCELLED"}


@pytest.mark.faults
@pytest.mark.parametrize("tool", ["squeue", "sbatch"])
def test_interrupted_during_a_query(plain: Sandbox, new_run: NewRun, tool: str) -> None:
    run = new_run(plain)
    start(run, "done.a", seconds=100, env=wrapper(run, tool, '$REAL "$@"; sleep 5'))
    run.job("RUNNING")
    run.until(lambda: (run.folder / f"bin/{tool}.calls").exists(), 10, f"{tool} is being asked")
    run.signal(signal.SIGINT)
    assert run.end(10) in (1, 130)
    run.until(lambda: not run.queue(), 8, "the queue is clear")
    run.assert_clear(25)


@pytest.mark.faults
def test_interrupted_while_the_controller_is_away(plain: Sandbox, new_run: NewRun) -> None:
    run = start(new_run(plain), "done.a", seconds=100)
    run.job("RUNNING")
    plain.stop_slurmctld()
    try:
        run.signal(signal.SIGINT)
        assert run.end(10) in (1, 130)
    finally:
        plain.start_slurmctld()
    run.assert_clear(60)
    assert "cancelling" in run.guard_log, run.guard_log


@pytest.mark.faults
def test_a_node_fails(accounted: Sandbox, new_run: NewRun) -> None:
    """JobRequeue=1 here: without --no-requeue Slurm would start the job again while Snakemake starts another."""
    run = start(new_run(accounted), "group.x", seconds=200, nodes=2)
    job = run.job("RUNNING")
    time.sleep(1.5)
    accounted.kill_node("node2")
    try:
        assert run.end(accounted.options.slurmd_timeout + 60) == 1
        assert re.search(rf"deployment x \(job {job}\): one of the nodes node\[1-2\] failed after", run.said), run.said
        run.assert_clear(10)
    finally:
        accounted.start_node("node2")
        accounted.wait_idle()


@pytest.mark.faults
def test_main_process_in_a_slurm_job(plain: Sandbox, new_run: NewRun) -> None:
    """SLURM_* variables of its own job do not change what it submits; SLURM_CONF stays."""
    run = new_run(plain)
    outer = {"SLURM_JOB_ID": "1", "SLURM_NNODES": "2", "SLURM_MEM_PER_NODE": "1", "SBATCH_IGNORE": "1"}
    start(run, "done.a", env=outer)
    assert run.end(START_S) == 0, run.said


@pytest.mark.faults
def test_jobs_of_killed_run_are_cancelled(plain: Sandbox, new_run: NewRun) -> None:
    run = start(new_run(plain), "group.x", "done.a", seconds=100)
    run.job("RUNNING")
    run.until(lambda: len(run.events("submitted")) == 2, 10, "both are submitted")
    run.signal(signal.SIGKILL)
    assert run.end(2) == -signal.SIGKILL
    run.assert_clear(15)
    assert "no job of the run is in the queue" in run.guard_log
    assert noted_states(run) == {"CANCELLED"}
    assert run.events("run_ended")


@pytest.mark.faults
def test_killed_run_with_its_guard(plain: Sandbox, new_run: NewRun) -> None:
    run = start(new_run(plain), "done.a", seconds=100)
    job = run.job("RUNNING")
    for pid in run.until(run.guards, 5, "the guard is there"):
        os.kill(pid, signal.SIGKILL)
    run.signal(signal.SIGKILL)
    run.end(2)
    assert run.queue()
    code = (
        "import sys; from pathlib import Path; from snakemake_executor_plugin_slurm_guarded import leftovers;"
        "leftovers.cancel(Path('results').glob('*/slurm/jobs.jsonl'), Path(), print)"
    )
    again = [plain.run([sys.executable, "-c", code], cwd=run.folder, timeout=20, check=True) for _ in range(2)]
    assert f"still in Slurm's queue ({job})" in again[0].stdout and again[1].stdout == ""
    assert not run.queue()


ASK = """
import sys
from snakemake_executor_plugin_slurm_guarded.errors import GuardedError
from snakemake_executor_plugin_slurm_guarded import preflight
from snakemake_executor_plugin_slurm_guarded.request import Request
for nodes, gres in ((1, "gpu:4"), (2, "gpu:4"), (1, "gpu:99")):
    said = []
    try:
        preflight.check([Request("x", nodes=nodes, gres=gres, minutes=5)], said.append)
        print("queued" if said else "accepted")
    except GuardedError as error:
        print("wait" if "again when" in error.message() else "fix")
"""


@pytest.mark.faults
def test_preflight_queues_what_sbatch_queues(plain: Sandbox, new_run: NewRun) -> None:
    """Requests for one node, for two nodes, and for GPUs that no node has."""
    folder = new_run(plain).folder

    def ask() -> list[str]:
        return plain.run([sys.executable, "-c", ASK], cwd=folder, timeout=60, check=True).stdout.split()

    def update(*change: str) -> None:
        plain.run(["scontrol", "update", *change], check=True)

    def in_service() -> bool:
        states = plain.run(["sinfo", "--noheader", "--format=%T"]).stdout.split()
        return bool(states) and set(states) <= {"idle", "mixed", "allocated"}

    try:
        assert ask() == ["accepted", "accepted", "fix"]
        update("nodename=node2", "state=drain", "reason=test")
        assert ask() == ["accepted", "queued", "fix"]
        update("nodename=node1", "state=drain", "reason=test")
        assert ask() == ["queued", "queued", "fix"]
        update("nodename=node[1-2]", "state=resume")
        plain.wait(in_service, 60, "both nodes take jobs")
        update("partitionname=batch", "state=down")
        assert ask() == ["accepted", "accepted", "fix"]
        update("partitionname=batch", "state=inactive")
        assert ask() == ["wait", "wait", "wait"]
        update("partitionname=batch", "state=up")
        for node in plain.nodes:
            plain.kill_slurmd(node)
        plain.stop_slurmctld()
        plain.start_slurmctld()
        assert ask() == ["queued", "queued", "fix"], "no node has registered"
    finally:
        update("partitionname=batch", "state=up")
        for node in plain.nodes:
            if plain.slurmd_pid(node) is None:
                plain.start_slurmd(node)
        plain.run(["scontrol", "update", "nodename=node[1-2]", "state=resume"])
        plain.wait(in_service, 60, "both nodes take jobs")
    assert not [job for job in plain.jobs() if job["name"].startswith(preflight.NAME) and job["state"] in LIVE]


def test_reason_of_held_job_is_printed_and_released_job_runs(plain: Sandbox, new_run: NewRun) -> None:
    run = start(new_run(plain), "done.a", extra="--hold")
    job = run.job("PENDING")
    run.until(lambda: "scontrol release" in run.said, 30, "the run reports that the job is held")
    assert [entry["reason"] for entry in run.events("state")][-1] == "JobHeldUser"
    plain.run(["scontrol", "release", job], check=True)
    assert run.end(START_S) == 0, run.said
    assert run.said.count("JobHeldUser") == 1, run.said


@pytest.mark.faults
def test_preflight(accounted: Sandbox, new_run: NewRun) -> None:
    code = """
from snakemake_executor_plugin_slurm_guarded.errors import GuardedError
from snakemake_executor_plugin_slurm_guarded import preflight, queries
from snakemake_executor_plugin_slurm_guarded.request import Request
preflight.check([Request("good", "research", "batch", "normal", "gpu", 2, "gpu:4", 60, True)], print)
wrong = {"account": "nobodys", "partition": "nowhere", "qos": "golden", "constraint": "tpu"}
wrong |= {"nodes": 9, "gres": "gpu:9", "minutes": 61, "extra": "--x"}
try:
    preflight.check([Request(key, **({"account": "research"} | {key: value})) for key, value in wrong.items()], print)
except GuardedError as error:
    print(error.what)
print([queries.partition_limit(name) for name in (None, "batch", "short")])
"""
    said = accounted.run([sys.executable, "-c", code], cwd=new_run(accounted).folder, timeout=30, check=True).stdout
    resources = {
        "account": "slurm_account",
        "partition": "slurm_partition",
        "minutes": "runtime",
        "extra": "slurm_extra",
    }
    for key in ("account", "partition", "qos", "constraint", "nodes", "gres", "minutes", "extra"):
        resource = resources.get(key, key)
        assert re.search(rf"^{key}: Slurm refuses the request \(see [^)]*{resource}", said, re.MULTILINE), said
    assert said.endswith("[60.0, 60.0, 2.0]\n")
    assert not said.startswith("good")


@pytest.mark.faults
def test_out_of_time(out_of_time: Run) -> None:
    assert out_of_time.end(90) == 1
    assert re.search(r"single \(name=a\) \(job \d+\): ran into its time limit of 1 min on node", out_of_time.said), out_of_time.said
    out_of_time.assert_clear(3)
