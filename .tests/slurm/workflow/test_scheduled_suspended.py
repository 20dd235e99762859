"""Slurm suspends a job while it measures: the result is marked, the run completes, and the point can be measured again."""

from __future__ import annotations

import sys
import time

from scheduled_checkout import RUN, RUN_S, ScheduledCheckout

from integration.harness import wait_until
from servemark.measurement import silence
from servemark.measurement.raw import read_raw
from servemark.records import Plan


def test_suspended_job_gives_no_valid_result(checkout: ScheduledCheckout) -> None:
    checkout.keep("a")
    # Some 20 s. The stand-in's variable for its pace does not reach a job, because it has the name of a secret.
    checkout.config["workloads"]["chat"] |= {"requests": 50, "concurrency": [2], "output_tokens": 300}
    running = checkout.start()
    checkout.wait_for_progress("chat-c2-r1: 50 requests", subject="a", seconds=RUN_S)
    before = checkout.requests_served("a")
    wait_until(lambda: checkout.requests_served("a") > before + 10, 60, "it is measured")
    job = checkout.job()["job_id"]
    checkout.cluster.run(["scontrol", "suspend", job], check=True)
    time.sleep(12)
    checkout.cluster.run(["scontrol", "resume", job], check=True)
    done = running.wait(RUN_S)
    assert done.rc == 0, done.text
    record = checkout.points("a")["chat-c2-r1"]
    (reason,) = (reason for reason in record["reasons"] if reason["code"] == "interrupted")
    assert record["verdict"] == "SUSPECT" and f"job {job}" in reason["detail"], record["reasons"]
    raw = read_raw(checkout.results / "deployments/a/points/chat-c2-r1.requests.json")
    asked = next(load for load in Plan.read(checkout.results / "deployments/a/plan.json").loads if load.concurrency == 2)
    (seen,) = silence.reasons(raw, asked)
    assert raw.duration_s > 20 and "%)" in seen.detail, "the requests' times show it without Slurm's record"
    archive = checkout.results / "archive" / f"{RUN}.tar.zst"
    env = {"PYTHONPATH": str(checkout.path / "workflow" / "lib")}
    verified = checkout.cluster.run([sys.executable, "-m", "servemark.cli", "verify", str(archive)], cwd=checkout.path, env=env)
    assert verified.returncode == 0, verified.stderr
    checkout.assert_nothing_left()

    (checkout.results / "deployments/a/points/chat-c2-r1.json").unlink()
    again = checkout.run()
    assert again.rc == 0, again.text
    assert "interrupted" not in {reason["code"] for reason in checkout.points("a")["chat-c2-r1"]["reasons"]}
