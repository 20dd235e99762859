"""Faults of the main process: interrupted, killed, not alone, or with leftovers of earlier runs.

Each run ends in bounded time, prints the reason, leaves nothing, and a plain rerun completes it.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from fault_table import Injury
from injuring import END_S, assert_completed, begin, measuring, occupy
from sandbox import Sandbox
from scheduled_checkout import GONE_S, LIVE, RUN_S, ScheduledCheckout

from integration.harness import Running, wait_until
from snakemake_executor_plugin_slurm_guarded import guard

pytestmark = [pytest.mark.faults, pytest.mark.usefixtures("queue_left_empty")]
core = pytest.mark.core

# From a signal to the end of the main process (signals.BOUND_S is 8 s).
ANSWER_S = 13.0


# The main process


SIGNALS = [
    pytest.param(signal.SIGINT, True, id="ctrl-c", marks=core),
    *(pytest.param(number, False, id=number.name) for number in (signal.SIGTERM, signal.SIGHUP)),
]


@pytest.mark.parametrize(("number", "group"), SIGNALS)
def test_interrupted_while_measuring(checkout: ScheduledCheckout, injury: Injury, number: signal.Signals, group: bool) -> None:
    injury.of(f"{number.name} while measuring", rf"servemark: {number.name}: ending the running stages")
    running, _, before = measuring(checkout)
    since = time.monotonic()
    running.interrupt(number, group=group)
    done = injury.ends(checkout, running, ANSWER_S, since, GONE_S)
    assert done.rc not in (0, -number) and "Traceback" not in done.text, done.text
    assert_completed(checkout, injury, before)


def test_interrupted_while_pending(checkout: ScheduledCheckout, injury: Injury) -> None:
    injury.of("Ctrl-C while the job is pending", r"servemark: SIGINT: ending the running stages")
    other = occupy(checkout.cluster, "batch", 300)
    running = begin(checkout)
    checkout.job(state="PENDING")
    place = re.compile(r" a +queue +job \d+ is number 1 in the queue of partition batch")
    wait_until(lambda: place.search(running.text), 30, "the position in the queue is shown")
    since = time.monotonic()
    running.interrupt(signal.SIGINT, group=True)
    assert injury.ends(checkout, running, ANSWER_S, since, GONE_S).rc not in (0, -signal.SIGINT)
    assert not checkout.attempts("a")
    checkout.cluster.run(["scancel", other])
    assert_completed(checkout, injury, {})


def test_interrupted_during_a_slurm_query(checkout: ScheduledCheckout, injury: Injury) -> None:
    injury.of("Ctrl-C during a status query", r"servemark: SIGINT: ending the running stages")
    tools = checkout.path / "slow"
    tools.mkdir()
    # In place of a controller that responds slowly.
    (tools / "squeue").write_text('#!/bin/sh\necho x >> "$0.calls"\n/usr/bin/squeue "$@"; [ ! -e "$0.slow" ] || sleep 6\n')
    (tools / "squeue").chmod(0o755)
    running, _, before = measuring(checkout, PATH=f"{tools}:{checkout.cluster.environment()['PATH']}")
    (tools / "squeue.slow").touch()
    calls = (tools / "squeue.calls").read_text()
    wait_until(lambda: (tools / "squeue.calls").read_text() != calls, 30, "squeue is asked")
    since = time.monotonic()
    running.interrupt(signal.SIGINT, group=True)
    assert injury.ends(checkout, running, ANSWER_S, since, 60).rc not in (0, -signal.SIGINT)
    (tools / "squeue.slow").unlink()
    assert_completed(checkout, injury, before)


def test_interrupted_twice(checkout: ScheduledCheckout, injury: Injury) -> None:
    injury.of("Ctrl-C twice", r"interrupted again; ")
    tools = checkout.path / "slow"
    tools.mkdir()
    # In place of a controller that responds slowly; otherwise the first signal is enough.
    (tools / "scancel").write_text('#!/bin/sh\nsleep 4\nexec /usr/bin/scancel "$@"\n')
    (tools / "scancel").chmod(0o755)
    running, _, before = measuring(checkout, PATH=f"{tools}:{checkout.cluster.environment()['PATH']}")
    since = time.monotonic()
    running.interrupt(signal.SIGINT, group=True)
    time.sleep(0.7)
    running.interrupt(signal.SIGINT, group=True)
    assert injury.ends(checkout, running, 5, since, 60).rc == 130
    assert_completed(checkout, injury, before)


@pytest.mark.parametrize("guard", [pytest.param("its guard lives", marks=core), "its guard too"])
def test_killed(checkout: ScheduledCheckout, injury: Injury, guard: str) -> None:
    """kill -9 of the main process: the guard ends the job or, without a guard, the next run does."""
    injury.of(f"kill -9 of the main process, {guard}", "", "printed by the next run")
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
    told = rf"still in Slurm's queue \({job['job_id']}\)\. Cancelling" if left_alone else "An earlier run did not unlock"
    injury.of(injury.fault, told, "printed by the next run")
    done = assert_completed(checkout, injury, before)
    injury.check_reason(done.text)
    injury.left = "nothing"


def guards(checkout: ScheduledCheckout) -> list[int]:
    return [p.pid for p in checkout.where(guard.__name__).get("login", [])]


def test_main_process_is_a_job_that_runs_into_its_time_limit(checkout: ScheduledCheckout, injury: Injury) -> None:
    injury.of("the main process's own job reaches its time limit", r"The job that this process runs in ends in 30 s")
    checkout.keep("a")
    checkout.inject("none")
    checkout.config["timeouts"] |= {"no_progress": 150.0, "point": 200.0}
    checkout.config["workloads"]["chat"]["output_tokens"] = 150  # as in `begin`
    checkout.write()
    output = checkout.path.parent / "outer.txt"
    script = f"#!/bin/bash\ncd {checkout.path}\n{' '.join(checkout.command())}\necho ended with $?\n"
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
    assert_completed(checkout, injury, before)


def test_two_runs_in_one_checkout(checkout: ScheduledCheckout, injury: Injury) -> None:
    injury.of("a second Snakemake in the same directory", r"Another run is using this directory: process \d+ on login")
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
    """Return the process's id on its node."""
    line = next(li for li in Path(f"/proc/{running.process.pid}/status").read_text().splitlines() if li.startswith("NSpid:"))
    return int(line.split()[-1])


# Leftovers and foreign processes


def test_foreign_server_on_the_configured_port(checkout: ScheduledCheckout, injury: Injury) -> None:
    injury.of("another program listens on the configured port", r"a/chat-c1-r1 +port_taken", "port_taken")
    checkout.config["deployments"]["a"]["port"] = 18123
    code = "import http.server as h; h.ThreadingHTTPServer(('0.0.0.0', 18123), h.SimpleHTTPRequestHandler).serve_forever()"
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    foreign = [checkout.cluster.popen([sys.executable, "-c", code], node=node, cwd="/", **quiet) for node in ("node1", "node2")]
    try:
        since = time.monotonic()
        done = injury.ends(checkout, begin(checkout), RUN_S, since, GONE_S)
        assert done.rc == 1 and "port: auto" in done.text, done.text
        assert all(process.poll() is None for process in foreign), "a foreign server must survive"
        assert not (checkout.attempts("a")[-1] / "server.log").exists()
    finally:
        for process in foreign:
            process.kill()
            process.wait()
    assert_completed(checkout, injury, {})


def test_leftovers_of_earlier_run_are_ended_by_the_next(
    checkouts: Callable[..., ScheduledCheckout], loose: Sandbox, injury: Injury
) -> None:
    """Without control groups, vLLM's engine outlives job and supervisor if the server is killed."""
    injury.of(
        "supervisor, remote and server killed; the engine lives on",
        r"ended a process left by an earlier attempt( on node1)?: \d+ \S+",
    )
    checkout = checkouts(loose)
    checkout.site["extra"] = ["--nodelist=node1"]
    running, job, before = measuring(checkout)
    engines = checkout.where("standin_engine.py")["node1"]
    # All at once, before one of them can end its children.
    words = ("servemark.supervisor", "servemark.supervisor.remote", "cli.main serve")
    killed = [found for word in words for found in checkout.where(word)["node1"]]
    for act in (psutil.Process.suspend, psutil.Process.kill):
        for process in killed:
            with contextlib.suppress(psutil.Error):
                act(process)
    since = time.monotonic()
    loose.run(["scancel", "--signal=KILL", "--full", job["job_id"]])
    loose.run(["scancel", job["job_id"]])
    done = running.wait(END_S)
    injury.end_s = time.monotonic() - since
    assert done.rc == 1, done.text
    assert [process for process in engines if process.is_running()], "the engine must outlive its job for this test"
    again = assert_completed(checkout, injury, before)
    injury.check_reason(again.text)
    assert not [process for process in engines if process.is_running()]
    injury.left = "nothing, once the next run had begun"
