"""Faults of server, client, port and model: each ends in bounded time, is named, and gives no result; healthy results stay."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import time
from pathlib import Path

import psutil
import pytest

from integration.harness import Checkout, Finished, wait_until
from servemark.report.table import FIGURES

# Slow enough that a test can act during a point, also on a busy machine.
SLOW = {"STANDIN_TOKEN_S": "0.15"}


def assert_no_result(checkout: Checkout, deployment: str, point: str) -> None:
    """Assert that table, record and report have no number for this point."""
    row = checkout.rows()[deployment, point]
    assert row["verdict"] == "INVALID"
    assert [row[figure] for figure in FIGURES] == [""] * len(FIGURES)
    records = [r for r in checkout.rejected().values() if (r["deployment"], r["load"]["name"]) == (deployment, point)]
    records += [checkout.points(deployment)[point]] if point in checkout.points(deployment) else []
    assert records
    for record in records:
        assert [record[key] for key in ("output_throughput", "request_throughput", "ttft_ms", "tpot_ms", "e2el_ms")] == [None] * 5


def assert_healthy(checkout: Checkout, deployment: str = "b") -> dict[str, str]:
    """Assert that all points of this deployment have results; return when each was measured."""
    rows = {point: row for (name, point), row in checkout.rows().items() if name == deployment}
    assert set(rows) == {"chat-c1-r1", "chat-c2-r1"}
    for row in rows.values():
        assert row["verdict"] in ("VALID", "SUSPECT") and all(
            float(row[name]) > 0 for name in ("output_tokens_per_s", "ttft_p50_ms", "e2el_p50_ms")
        )
    return checkout.started_at(deployment)


def assert_rerun_completes(checkout: Checkout, lost: set[str], kept: dict[str, str], **variables: str) -> Finished:
    """Assert that a plain rerun measures exactly the lost points of ``a`` and succeeds."""
    before = {**checkout.started_at("a")}
    served = checkout.requests_served("b")
    again = checkout.run(**variables)
    assert again.rc == 0, again.text
    after = checkout.started_at("a")
    assert {name for name, when in after.items() if before.get(name) != when} == lost
    assert checkout.started_at("b") == kept and checkout.requests_served("b") == served
    assert {row["verdict"] for row in checkout.rows().values()} <= {"VALID", "SUSPECT"}
    checkout.assert_all_dead()
    return again


@pytest.mark.parametrize(
    ("victim", "number", "reason"),
    [
        ("server", signal.SIGKILL, "server_died"),
        pytest.param("engine", signal.SIGKILL, "server_died", marks=pytest.mark.full),
        pytest.param("server", signal.SIGSTOP, "server_hung", marks=pytest.mark.full),
    ],
)
def test_lost_server_costs_only_its_own_points(checkout: Checkout, victim: str, number: signal.Signals, reason: str):
    if number == signal.SIGSTOP:
        checkout.config["timeouts"]["no_progress"] = 4.0
    checkout.inject("none")
    running = checkout.start(**SLOW)
    checkout.wait_for_progress("chat-c2-r1: 6 requests", subject="a")
    checkout.inject("hang" if number == signal.SIGKILL else "none")
    server = psutil.Process(checkout.daemon("a")["pid"])
    (engine,) = server.children()
    (server if victim == "server" else engine).send_signal(number)
    done = running.wait(480)

    assert done.rc == 1, done.text
    assert f"  a/chat-c2-r1  {reason}" in done.text and "  a/chat-c1-r1  " not in done.text, done.text
    checkout.assert_all_dead()
    assert_no_result(checkout, "a", "chat-c2-r1")
    assert reason in checkout.report()
    kept = assert_healthy(checkout)
    assert set(checkout.rejected()) == {"a/chat-c2-r1.1"}
    assert "chat-c2-r1" not in checkout.points("a")
    checkout.inject("none")
    assert_rerun_completes(checkout, {"chat-c2-r1"}, kept)


def test_stopped_client_makes_its_point_suspect(checkout: Checkout):
    checkout.keep("a")
    checkout.config["workloads"]["chat"] |= {"requests": 40, "concurrency": [2]}
    running = checkout.start(**SLOW)
    wait_until(lambda: checkout.requests_served("a") > 10, 180, "it is measured")
    (client,) = [process for process in checkout.processes() if process.name() == "bench-client"]
    client.suspend()
    time.sleep(4)
    client.resume()
    assert running.wait(480).rc == 0, running.text
    row = checkout.rows()["a", "chat-c2-r1"]
    assert (row["verdict"], "interrupted" in row["reasons"]) == ("SUSPECT", True), row
    assert "interrupted" in checkout.report()

    (checkout.results / "deployments/a/points/chat-c2-r1.json").unlink()
    assert checkout.run(**SLOW).rc == 0
    assert "interrupted" not in checkout.rows()["a", "chat-c2-r1"]["reasons"]


@pytest.mark.parametrize(
    ("fault", "reason", "words"),
    [
        pytest.param("exit_at_start", "kv_cache_too_small", "No available memory for the cache blocks", marks=pytest.mark.full),
        ("bad_option", "bad_server_option", "unrecognized arguments: --standin-bad-option"),
        pytest.param("never_ready", "engine_starting", "not ready after 6 s", marks=pytest.mark.full),
    ],
)
def test_server_that_never_starts_is_named_and_twice_is_a_permanent_gap(checkout: Checkout, fault: str, reason: str, words: str):
    if fault == "never_ready":  # the other deployment has to start in this time too
        checkout.config["timeouts"]["start"] = 6.0
    checkout.inject(fault)

    done = checkout.run()

    assert done.rc == 1, done.text
    failure = checkout.record("deployments/a/startup.json")["failure"]
    assert (failure["stage"], failure["reason"]) == ("await_ready", reason)
    assert any(words in line for line in (*failure["quote"], failure["detail"])), failure
    assert failure["remedy"] and failure["remedy"] in done.text and failure["log"] in done.text
    for point in ("chat-c1-r1", "chat-c2-r1"):
        assert_no_result(checkout, "a", point)
    assert reason in checkout.report() and words in checkout.report(), "the report quotes the server's log"
    kept = assert_healthy(checkout)
    archived = checkout.archived()
    assert archived["report.html"].decode() == checkout.report()
    assert reason in json.loads(archived["deployments/a/points/chat-c1-r1.json"])["failure"]["reason"]
    assert json.loads(archived["deployments/b/points/chat-c1-r1.json"])["output_throughput"] > 0
    assert set(checkout.rejected()) == {"a/chat-c1-r1.1", "a/chat-c2-r1.1"}
    checkout.assert_all_dead()

    again = checkout.run()

    assert again.rc == 0, again.text
    holes = checkout.record("check.json")["holes"]
    assert {(hole["deployment"], hole["point"]) for hole in holes} == {("a", "chat-c1-r1"), ("a", "chat-c2-r1")}
    assert {hole["reason"] for hole in holes} == {failure["reason"]} and failure["reason"] in again.text
    assert failure["reason"] in checkout.report()
    assert checkout.started_at("b") == kept
    checkout.assert_all_dead()


# test_serve.py of the unit tests has a taken port as well.
@pytest.mark.full
def test_taken_port_is_named_with_a_remedy(checkout: Checkout):
    with socket.socket() as mine:
        mine.bind(("127.0.0.1", 0))
        mine.listen()
        port = mine.getsockname()[1]
        checkout.config["deployments"]["a"]["port"] = port
        done = checkout.run()
        assert done.rc == 1, done.text
    assert "port_taken" in done.text and f"Port {port}" in done.text and "port: auto" in done.text
    assert_no_result(checkout, "a", "chat-c1-r1")
    assert not (checkout.attempts("a")[-1] / "server.log").exists()
    kept = assert_healthy(checkout)
    assert_rerun_completes(checkout, {"chat-c1-r1", "chat-c2-r1"}, kept)


# test_lost_server_costs_only_its_own_points has a healthy deployment next to a failed one.
def test_failed_requests_despite_exit_code_0_give_no_result(checkout: Checkout):
    reasons = {
        "fail_requests:3": "requests_failed", "cut_streams:2": "requests_failed", "short_tokens": "output_tokens_short",
        "zero_tokens": "no_output",
    }  # fmt: skip
    names = {fault: fault.split(":")[0].replace("_", "-") for fault in reasons}
    one = checkout.config["deployments"]["a"]
    checkout.config["deployments"] = {}
    checkout.config["workloads"]["chat"]["concurrency"] = [2]
    for number, name in enumerate(names.values()):
        checkout.config["deployments"][name] = one | {"options": {"max-model-len": 300 + number}}
        checkout.inject("none", deployment=name)

    running = checkout.start(**SLOW)
    # The faults begin after the readiness check, which would detect some of them; deployments run in any order.
    waiting = dict(names)

    def all_injected() -> bool:
        assert running.process.poll() is None, running.text
        ready = {line["subject"] for line in checkout.progress() if "ready after" in line["text"]}
        for fault in [fault for fault, name in waiting.items() if name in ready]:
            (checkout.path / f"fault-{waiting.pop(fault)}").write_text(fault)
        return not waiting

    wait_until(all_injected, 480, "every deployment is ready once")
    done = running.wait(480)

    assert done.rc == 1, done.text
    for fault, reason in reasons.items():
        deployment = names[fault]
        assert_no_result(checkout, deployment, "chat-c2-r1")
        record = checkout.rejected()[f"{deployment}/chat-c2-r1.1"]
        assert record["client_exit_code"] == 0
        assert reason in [r["code"] for r in record["reasons"] if r["severity"] == "INVALID"], record["reasons"]
        assert re.search(rf"^  {deployment}/chat-c2-r1 +{reason}$", done.text, re.MULTILINE), done.text
    checkout.assert_all_dead()


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        pytest.param("truncated_json", "raw_truncated", marks=pytest.mark.full),
        pytest.param("no_file", "raw_missing", marks=pytest.mark.full),
        ("exit_1", "client_failed"),
        pytest.param("nan", "non_finite", marks=pytest.mark.full),
        pytest.param("hang", "client_timeout", marks=pytest.mark.full),
    ],
)
def test_failed_client_gives_no_result_and_its_point_is_rejected(checkout: Checkout, fault: str, reason: str):
    checkout.keep("a")
    checkout.config["workloads"]["chat"]["concurrency"] = [1]
    if fault == "hang":
        checkout.config["timeouts"]["point"] = 3.0

    done = checkout.run(STANDIN_CLIENT_FAULT=fault)

    assert done.rc == 1, done.text
    assert_no_result(checkout, "a", "chat-c1-r1")
    (record,) = checkout.rejected().values()
    codes = [r["code"] for r in record["reasons"] if r["severity"] == "INVALID"]
    assert reason in codes, codes
    assert reason in done.text and reason in checkout.report()
    checkout.assert_all_dead()
    assert checkout.points("a") == {}, "the next run measures the point again"


# test_lost_server_costs_only_its_own_points has a healthy deployment next to a failed one.
def test_model_changed_after_staging_is_refused_by_file(checkout: Checkout):
    manifest = checkout.record("models/tiny/manifest.json")
    injuries = {"changed": _change, "truncated": _truncate, "missing": Path.unlink}
    one = checkout.config["deployments"]["a"]
    checkout.config["deployments"] = {}
    for number, name in enumerate(injuries):
        shutil.copytree(manifest["path"], checkout.path / name)
        checkout.config["models"][name] = {"source": str(checkout.path / name)}
        checkout.config["deployments"][name] = one | {"model": name, "options": {"max-model-len": 300 + number}}
    checkout.config["workloads"]["chat"]["concurrency"] = [2]
    staged = checkout.run("--until", "plan_deployment")
    assert staged.rc == 0, staged.text
    for name, injure in injuries.items():
        injure(checkout.path / name / "model.safetensors")

    done = checkout.run()

    assert done.rc == 1, done.text
    for name in injuries:
        assert re.search(rf"^  {name}/chat-c2-r1 +weights_changed$", done.text, re.MULTILINE), done.text
        failure = checkout.record(f"deployments/{name}/startup.json")["failure"]
        assert f"{name}: model.safetensors" in failure["detail"], failure
        assert not (checkout.attempts(name)[-1] / "server.log").exists()
        assert_no_result(checkout, name, "chat-c2-r1")
    checkout.assert_all_dead()


def _change(path: Path) -> None:
    with path.open("r+b") as stream:
        stream.seek(-1, os.SEEK_END)
        last = stream.read(1)
        stream.seek(-1, os.SEEK_END)
        stream.write(bytes([last[0] ^ 1]))


def _truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)
