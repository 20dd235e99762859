"""Faults of the scheduler's side: each run ends in bounded time and says why, leaves nothing, and a plain rerun completes it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from fault_table import Injury
from sandbox import Sandbox
from scheduled_checkout import GONE_S, LIVE, RUN_S, ScheduledCheckout

from integration.harness import Finished, Running, wait_until
from servemark import daemon

pytestmark = pytest.mark.faults
core = pytest.mark.slurm

# From a job's end to the run's end: the executor looks every few seconds, KillWait is 5 s, and the machine is busy.
END_S = 60.0
# From a signal to the end of the main process (interrupts.BOUND_S is 8 s).
ANSWER_S = 13.0


@pytest.fixture(autouse=True)
def _nodes_as_they_were(site: Sandbox) -> Iterator[None]:
    yield
    wait_until(
        lambda: not [j for j in site.jobs() if j["state"] in ("RUNNING", "COMPLETING", "PENDING")] or _clear(site),
        30,
        "no job",
    )


def _clear(site: Sandbox) -> None:
    site.run(["scancel", "--user=root"])


def begin(checkout: ScheduledCheckout, *arguments: str, **variables: str) -> Running:
    """Start a run of one deployment whose server can be made to hang."""
    checkout.keep("a")
    checkout.inject("none")
    checkout.config["timeouts"] |= {"no_progress": 150.0, "point": 200.0}
    return checkout.start(*arguments, **({"STANDIN_TOKEN_S": "0.05"} | variables))


def measuring(
    checkout: ScheduledCheckout, *arguments: str, **variables: str
) -> tuple[Running, dict[str, str], dict[str, str]]:
    """The same, up to its second point, in which the server hangs; with its job, and when the first point was measured."""
    running = begin(checkout, *arguments, **variables)
    job = checkout.measuring()
    before = checkout.started_at("a")
    assert set(before) == {"chat-c1-r1"}
    return running, job, before


def assert_mended(checkout: ScheduledCheckout, injury: Injury, before: dict[str, str]) -> Finished:
    """A plain rerun completes, and measures nothing again that was measured."""
    checkout.hang(False)
    done = checkout.run()
    injury.mended_by(done)
    after = checkout.started_at("a")
    assert set(after) == {"chat-c1-r1", "chat-c2-r1"} and {name: after[name] for name in before} == before
    assert {row["verdict"] for row in checkout.rows().values()} <= {"VALID", "SUSPECT"}
    checkout.assert_nothing_left()
    return done


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
    assert_mended(checkout, injury, before)


@pytest.mark.parametrize("when", ["loading", "measuring"])
def test_its_time_is_over(checkout: ScheduledCheckout, injury: Injury, when: str) -> None:
    injury.of(f"wall time over while {when}", r"a/chat-c2-r1 +out_of_time", "out_of_time")
    # The keeper ends everything 33 s before: stop 3 s + 30 s for the records.
    checkout.site["max_minutes"] = 1 if when == "loading" else 2
    if when == "loading":
        checkout.config["timeouts"] |= {"start": 300.0, "stall": 300.0}
        running, before = begin(checkout, STANDIN_START_S="200"), {}
        checkout.wait_for_progress("waiting for vLLM", seconds=RUN_S)
    else:
        running, _, before = measuring(checkout)
    done = injury.ends(checkout, running, 120, time.monotonic(), GONE_S)
    assert done.rc == 1
    assert [entry["state"] for entry in checkout.journal("ended")] == ["COMPLETED"], "it ended before Slurm ended it"
    failure = checkout.record("deployments/a/stopped.json")["failure"]
    assert failure["reason"] == "out_of_time" and "minutes_per_point" in failure["remedy"], failure
    assert "out_of_time" in checkout.report()
    checkout.site["max_minutes"] = 10
    assert_mended(checkout, injury, before)


@pytest.mark.parametrize("partition", ["low-cancel", "low-requeue"])
def test_preempted(checkout: ScheduledCheckout, injury: Injury, partition: str) -> None:
    injury.of(f"preempted, {partition}", r"deployment a \(job \d+\): preempted after \S+")
    checkout.site["partition"] = partition
    running, _, before = measuring(checkout)
    since = time.monotonic()
    occupy(checkout.cluster, "high", 3)
    assert injury.ends(checkout, running, END_S, since, GONE_S).rc == 1
    assert_mended(checkout, injury, before)


def test_preempted_and_requeued_by_slurm(checkout: ScheduledCheckout, injury: Injury) -> None:
    injury.of(
        "preempted, and Slurm may requeue",
        r"4 VALID|2 VALID|2 SUSPECT|1 VALID, 1 SUSPECT",
        "goes on by itself in a new attempt",
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
    owners = [json.loads((path / "keeper-spec.json").read_text())["owner"] for path in checkout.attempts("a")]
    assert owners == [f"job {job['job_id']}", f"job {job['job_id']}, start 2"]
    starts = checkout.record("deployments/a/accounting.json")["jobs"]
    assert [(start["job_id"], start["state"]) for start in starts] == [
        (job["job_id"], "PREEMPTED"),
        (job["job_id"], "COMPLETED"),
    ]


def occupy(cluster: Sandbox, partition: str, seconds: int, nodes: int = 2) -> str:
    """A job of somebody else that takes whole nodes; its id."""
    argv = [
        "sbatch",
        "--parsable",
        f"--partition={partition}",
        f"--nodes={nodes}",
        "--exclusive",
        "--time=10",
        "--output=/dev/null",
    ]
    return cluster.run([*argv, f"--wrap=sleep {seconds}"], check=True).stdout.strip()


# Nodes


def set_node(cluster: Sandbox, node: str, state: str) -> None:
    reason = ["reason=test"] if state == "drain" else []
    cluster.run(["scontrol", "update", f"nodename={node}", f"state={state}", *reason], check=True)


def test_nodes_are_drained(checkout: ScheduledCheckout, injury: Injury) -> None:
    injury.of("one node drained before, the other while it runs", r"job \d+ COMPLETED", "goes on")
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


def test_slurmd_is_lost(checkout: ScheduledCheckout, injury: Injury) -> None:
    """Its processes live on. The controller tells the keeper's sruns of the lost node, so keeper and stages end without slurmd; a server
    whose srun's end did not come through ends when it has heard nothing of its keeper for a while."""
    injury.of("slurmd killed, its processes live on", r"deployment a \(job \d+\): node \S+ failed after \S+")
    running, job, before = measuring(checkout)
    lost = job["nodes"]
    since = time.monotonic()
    checkout.cluster.kill_slurmd(lost)
    try:
        time.sleep(3)
        assert checkout.where("servemark.keeper").keys() == {lost}, "they outlive slurmd, or this test proves nothing"
        assert injury.ends(checkout, running, 120, since, None).rc == 1
        wait_until(lambda: not checkout.where("snakemake"), GONE_S, "who could write a record has ended")
        checkout.hang(False)
        injury.mended_by(checkout.run())
        assert checkout.started_at("a")["chat-c1-r1"] == before["chat-c1-r1"]
        assert checkout.record("deployments/a/accounting.json")["jobs"][-1]["nodes"] != [lost]
        [record] = [record for name, record in checkout.points("a").items() if name not in before]
        assert record["attempt"].endswith("/002") and record["verdict"] in ("VALID", "SUSPECT")
        wait_until(lambda: not checkout.where("servemark"), daemon.SILENCE_S + GONE_S, "nothing of it lives on, without slurmd")
        injury.left = "nothing"
    finally:
        checkout.cluster.start_slurmd(lost)
        checkout.cluster.wait_idle()


def test_a_frozen_node_comes_back_after_another_has_done_its_work(checkout: ScheduledCheckout, injury: Injury) -> None:
    """All processes stand still while Slurm gives the node up and a rerun completes elsewhere; then they go on."""
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
        injury.mended_by(checkout.run())
        done = checkout.digests("a") | checkout.started_at("a")
        assert checkout.started_at("a")["chat-c1-r1"] == before["chat-c1-r1"]
        for process in frozen:
            with contextlib.suppress(psutil.Error):
                process.resume()
        checkout.assert_nothing_left(daemon.SILENCE_S + GONE_S)
        assert checkout.digests("a") | checkout.started_at("a") == done, (
            "what woke up has changed the newer one's records"
        )
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
def test_the_controller_is_away_for_45_s(checkout: ScheduledCheckout, injury: Injury, when: str) -> None:
    injury.of(f"slurmctld down 45 s while {when}", r"Slurm answers again after \d+ s", "waits, says so, goes on")
    if when == "submitting":
        running = begin(checkout)
        checkout.wait_for_progress("1 ranks", seconds=60)
        before = {}
    else:
        running, _, before = measuring(checkout)
    since = time.monotonic()
    with controller_away(checkout.cluster, 45):
        checkout.hang(False)
        wait_until(lambda: "Slurm does not answer" in running.text, 40, "it says that Slurm does not answer")
    assert injury.ends(checkout, running, 45 + RUN_S, since, GONE_S).rc == 0
    assert len(checkout.journal("submitted")) == 1 and len(checkout.attempts("a")) == 1
    after = checkout.started_at("a")
    assert {name: after[name] for name in before} == before


def test_the_accounting_daemon_is_away(checkout: ScheduledCheckout, injury: Injury) -> None:
    injury.of(
        "slurmdbd down from before the submission to after the end",
        r"job \d+ COMPLETED",
        "goes on; accounting by the controller",
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
@pytest.mark.parametrize(
    ("key", "value"), [("account", "nobodys"), ("partition", "nowhere"), ("qos", "golden"), ("gpus_per_node", 99)]
)
def test_refused_before_anything_is_submitted(
    checkout: ScheduledCheckout, injury: Injury, key: str, value: object
) -> None:
    named = {"gpus_per_node": "gres"}.get(key, key)
    injury.of(f"{key}: {value}", rf"Slurm refuses the request \(keys? [\w, ]*{named}[\w, ]*\): .+")
    begin_ = time.monotonic()
    checkout.site[key] = value
    done = injury.ends(checkout, begin(checkout), 40, begin_, GONE_S)
    assert done.rc == 2
    assert not checkout.journal("run") and not checkout.attempts("a")
    checkout.site[key] = {"account": "research", "partition": "batch", "qos": "normal", "gpus_per_node": 4}[key]
    # What is refused here is refused before the rules: that it goes on at all is enough.
    injury.mended_by(checkout.run("--until", "confirm_plans"))


def test_refused_at_the_submission_of_the_group(checkout: ScheduledCheckout, injury: Injury) -> None:
    injury.of("partition closed between check and submission", r"deployment a: Slurm refused it: .+")
    running = begin(checkout)
    checkout.wait_for_progress("1 ranks", seconds=60)
    since = time.monotonic()
    checkout.cluster.run(["scontrol", "update", "PartitionName=batch", "State=INACTIVE"], check=True)
    try:
        assert injury.ends(checkout, running, 30, since, GONE_S).rc == 1
        assert not checkout.journal("submitted")
    finally:
        checkout.cluster.run(["scontrol", "update", "PartitionName=batch", "State=UP"], check=True)
    assert_mended(checkout, injury, {})


# The main process


SIGNALS = [
    pytest.param(signal.SIGINT, True, id="ctrl-c", marks=core),
    *(pytest.param(number, False, id=number.name) for number in (signal.SIGTERM, signal.SIGHUP)),
]


@pytest.mark.parametrize(("number", "group"), SIGNALS)
def test_interrupted_while_measuring(
    checkout: ScheduledCheckout, injury: Injury, number: signal.Signals, group: bool
) -> None:
    injury.of(f"{number.name} while measuring", rf"servemark: {number.name}: ending the running stages")
    running, _, before = measuring(checkout)
    since = time.monotonic()
    running.interrupt(number, group=group)
    done = injury.ends(checkout, running, ANSWER_S, since, GONE_S)
    assert done.rc not in (0, -number) and "Traceback" not in done.text, done.text
    assert_mended(checkout, injury, before)


def test_interrupted_while_pending(checkout: ScheduledCheckout, injury: Injury) -> None:
    injury.of("Ctrl-C while the job is pending", r"servemark: SIGINT: ending the running stages")
    other = occupy(checkout.cluster, "batch", 300)
    running = begin(checkout)
    checkout.job(state="PENDING")
    since = time.monotonic()
    running.interrupt(signal.SIGINT, group=True)
    assert injury.ends(checkout, running, ANSWER_S, since, GONE_S).rc not in (0, -signal.SIGINT)
    assert not checkout.attempts("a")
    checkout.cluster.run(["scancel", other])
    assert_mended(checkout, injury, {})


def test_interrupted_while_slurm_is_being_asked(checkout: ScheduledCheckout, injury: Injury) -> None:
    injury.of("Ctrl-C during a status query", r"servemark: SIGINT: ending the running stages")
    tools = checkout.path / "slow"
    tools.mkdir()
    # A stand-in for a controller that is slow to answer.
    (tools / "squeue").write_text(
        '#!/bin/sh\necho x >> "$0.calls"\n/usr/bin/squeue "$@"; [ ! -e "$0.slow" ] || sleep 6\n'
    )
    (tools / "squeue").chmod(0o755)
    running, _, before = measuring(checkout, PATH=f"{tools}:{checkout.cluster.environment()['PATH']}")
    (tools / "squeue.slow").touch()
    calls = (tools / "squeue.calls").read_text()
    wait_until(lambda: (tools / "squeue.calls").read_text() != calls, 30, "squeue is asked")
    since = time.monotonic()
    running.interrupt(signal.SIGINT, group=True)
    assert injury.ends(checkout, running, ANSWER_S, since, 60).rc not in (0, -signal.SIGINT)
    (tools / "squeue.slow").unlink()
    assert_mended(checkout, injury, before)


@pytest.mark.xfail(
    strict=False, reason="the key stays when the keeper sees the server's end before it is asked to stop"
)
def test_interrupted_twice(checkout: ScheduledCheckout, injury: Injury) -> None:
    injury.of("Ctrl-C twice", r"interrupted again; ending at once")
    tools = checkout.path / "slow"
    tools.mkdir()
    # A stand-in for a controller that is slow to answer: otherwise the first one is enough.
    (tools / "scancel").write_text('#!/bin/sh\nsleep 4\nexec /usr/bin/scancel "$@"\n')
    (tools / "scancel").chmod(0o755)
    running, _, before = measuring(checkout, PATH=f"{tools}:{checkout.cluster.environment()['PATH']}")
    since = time.monotonic()
    running.interrupt(signal.SIGINT, group=True)
    time.sleep(0.7)
    running.interrupt(signal.SIGINT, group=True)
    assert injury.ends(checkout, running, 5, since, 60).rc == 130
    assert_mended(checkout, injury, before)


@pytest.mark.parametrize("guard", [pytest.param("its guard lives", marks=core), "its guard too"])
def test_killed(checkout: ScheduledCheckout, injury: Injury, guard: str) -> None:
    """kill -9 of the main process; the job ends by the guard, or, without one, when the next run begins."""
    injury.of(f"kill -9 of the main process, {guard}", "", "said by the next run")
    running, job, before = measuring(checkout)
    if guard == "its guard too":
        for pid in guards(checkout):
            os.kill(pid, signal.SIGKILL)
    since = time.monotonic()
    running.interrupt(signal.SIGKILL)
    left_alone = guard == "its guard too"
    assert injury.ends(checkout, running, 5, since, None if left_alone else GONE_S).rc == -signal.SIGKILL
    if left_alone:
        time.sleep(3)
        assert [j["job_id"] for j in checkout.queue()] == [job["job_id"]]
    else:
        assert job["job_id"] in (checkout.results / "slurm/guard.log").read_text()
    told = (
        rf"still in Slurm's queue \({job['job_id']}\); cancelling"
        if left_alone
        else "An earlier run ended without unlocking"
    )
    injury.of(injury.fault, told, "said by the next run")
    done = assert_mended(checkout, injury, before)
    injury.check_reason(done.text)
    injury.left = "nothing"


def guards(checkout: ScheduledCheckout) -> list[int]:
    return [p.pid for p in checkout.where("servemark.slurm.guard").get("login", [])]


def test_the_main_process_is_itself_a_job_and_its_time_is_over(checkout: ScheduledCheckout, injury: Injury) -> None:
    injury.of("the main process's own job reaches its time limit", r"the job that this process runs in ends in 30 s")
    checkout.keep("a")
    checkout.inject("none")
    checkout.config["timeouts"] |= {"no_progress": 150.0, "point": 200.0}
    checkout.write()
    output = checkout.path.parent / "outer.txt"
    script = (
        f"#!/bin/bash\ncd {checkout.path}\nSTANDIN_TOKEN_S=0.05 {' '.join(checkout.command())}\necho ended with $?\n"
    )
    argv = ["sbatch", "--parsable", "--partition=client", "--time=2", f"--output={output}"]
    outer = checkout.cluster.run(argv, input=script, check=True).stdout.strip()
    checkout.measuring()
    before = checkout.started_at("a")
    try:
        over = lambda: next(j["state"] for j in checkout.cluster.jobs() if j["job_id"] == outer) not in LIVE  # noqa: E731
        wait_until(over, 150, "the outer job is over")
        since = time.monotonic()
        checkout.assert_nothing_left(60)
        injury.end_s, injury.left = time.monotonic() - since, "nothing"
        injury.check_reason(output.read_text())
    finally:
        checkout.cluster.run(["scancel", outer])
    assert_mended(checkout, injury, before)


def test_two_runs_in_one_checkout(checkout: ScheduledCheckout, injury: Injury) -> None:
    injury.of(
        "a second Snakemake in the same directory", r"Another run is at work in this directory: process \d+ on login"
    )
    running, _, before = measuring(checkout)
    since = time.monotonic()
    first = checkout.current
    second = checkout.start()
    done = injury.ends(checkout, second, 30, since, None)
    assert done.rc == 2 and f"process {_inner(running)}" in done.text, done.text
    checkout.current = first
    checkout.hang(False)
    ended = running.wait(RUN_S)
    assert ended.rc == 0, ended.text
    after = checkout.started_at("a")
    assert after["chat-c1-r1"] == before["chat-c1-r1"]
    checkout.assert_nothing_left()
    injury.left = "the first run, unharmed"


def _inner(running: Running) -> int:
    """The process's number as its own node counts."""
    line = next(
        li for li in Path(f"/proc/{running.process.pid}/status").read_text().splitlines() if li.startswith("NSpid:")
    )
    return int(line.split()[-1])


# What is there already


def test_somebody_elses_server_on_the_configured_port(checkout: ScheduledCheckout, injury: Injury) -> None:
    injury.of("another program listens on the configured port", r"a/chat-c1-r1 +port_taken", "port_taken")
    checkout.config["deployments"]["a"]["port"] = 18123
    code = (
        "import http.server as h; h.ThreadingHTTPServer(('0.0.0.0', 18123), h.SimpleHTTPRequestHandler).serve_forever()"
    )
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    foreign = [
        checkout.cluster.popen([sys.executable, "-c", code], node=node, cwd="/", **quiet) for node in ("node1", "node2")
    ]
    try:
        since = time.monotonic()
        done = injury.ends(checkout, begin(checkout), RUN_S, since, GONE_S)
        assert done.rc == 1 and "port: auto" in done.text, done.text
        assert all(process.poll() is None for process in foreign), "it is not ours to end"
        assert not (checkout.attempts("a")[-1] / "server.log").exists()
    finally:
        for process in foreign:
            process.kill()
            process.wait()
    assert_mended(checkout, injury, {})


def test_what_an_earlier_run_has_left_is_ended_by_the_next(
    checkouts: Callable[..., ScheduledCheckout], loose: Sandbox, injury: Injury
) -> None:
    """Without control groups, a process that hides outlives job and keeper: vLLM's engine does when the server is killed."""
    injury.of(
        "keeper, remote and server killed; the engine lives on",
        r"ended a process left by an earlier attempt( on node1)?: \d+ \S+",
    )
    checkout = checkouts(loose)
    checkout.site["extra"] = ["--nodelist=node1"]
    running, job, before = measuring(checkout)
    engines = checkout.where("standin_engine.py")["node1"]
    # All at once, before one of them can end what is below it.
    words = ("servemark.keeper", "servemark.remote", "cli.main serve")
    for process in [found for word in words for found in checkout.where(word)["node1"]]:
        with contextlib.suppress(psutil.Error):
            process.kill()
    since = time.monotonic()
    loose.run(["scancel", "--signal=KILL", "--full", job["job_id"]])
    loose.run(["scancel", job["job_id"]])
    done = running.wait(END_S)
    injury.end_s = time.monotonic() - since
    assert done.rc == 1, done.text
    assert [process for process in engines if process.is_running()], (
        "the engine outlived its job, or this test proves nothing"
    )
    again = assert_mended(checkout, injury, before)
    injury.check_reason(again.text)
    assert not [process for process in engines if process.is_running()]
    injury.left = "nothing, once the next run had begun"
