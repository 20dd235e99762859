"""Servers that start, and servers that do not: later stages pass the failure on."""

from __future__ import annotations

import socket
import time

import pytest

from builders.deployed import assert_all_gone, assert_no_figure, kill_supervisor, reasons
from servemark.machine import network
from servemark.records import Container

LOOPBACK = "127.0.0.1"


@pytest.mark.parametrize(
    ("variables", "timeouts", "reason", "words", "quote"),
    [
        (
            {"STANDIN_FAULT": "exit_at_start"},
            {},
            "kv_cache_too_small",
            "exited with code 1",
            "No available memory for the cache blocks",
        ),
        (
            {"STANDIN_FAULT": "bad_option"},
            {},
            None,
            "exited with code 2",
            "unrecognized arguments: --standin-bad-option",
        ),
        ({"STANDIN_FAULT": "die_after:0"}, {}, "server_exited", "was ended by signal 9", ""),
        ({"STANDIN_FAULT": "wrong_name"}, {}, "foreign_server", "['standin-wrong-name'], not 'tiny'", ""),
        ({"STANDIN_FAULT": "slow_start:60"}, {"stall": 1.0}, None, "no log line for 1 s", ""),
        ({"STANDIN_FAULT": "never_ready"}, {"start": 2.0}, None, "not ready after 2 s", ""),
    ],
    ids=["exits", "bad option", "dies at its first completion", "wrong name", "silent", "never ready"],
)
def test_failed_server_start_is_passed_to_later_stages(deploy, variables, timeouts, reason, words, quote):
    plain = deploy(points=1, variables=variables)
    plain.timeouts = plain.timeouts.model_copy(update=timeouts)
    begin = time.monotonic()
    ready = plain.up()
    assert time.monotonic() - begin < 60
    assert ready.failure.stage == "await_ready" and ready.url is None
    assert reason in (None, ready.failure.reason) and words in ready.failure.detail
    assert quote in "\n".join(ready.failure.quote) and ready.failure.remedy
    assert_all_gone(plain)
    record = plain.measure()
    assert_no_figure(plain, record)
    assert record.failure == ready.failure and reasons(record) == {ready.failure.reason}
    assert plain.stop().failure == ready.failure


def test_taken_port_fails_before_model_is_loaded(deploy):
    plain = deploy(points=1)
    with socket.create_server((LOOPBACK, 0)) as holder:
        port = holder.getsockname()[1]
        endpoint = plain.serve(plain.start(), port=port)
    assert (endpoint.failure.stage, endpoint.failure.reason) == ("serve_model", "port_taken")
    assert "deployments.plain.port" in endpoint.failure.detail and f"sport = :{port}" in endpoint.failure.remedy
    assert_all_gone(plain)
    ready, startup = plain.wait(plain.start(), endpoint)
    assert ready.failure == startup.failure == endpoint.failure


def test_configured_port_is_used(deploy):
    plain = deploy(points=1)
    (port,) = network.find_ports(LOOPBACK, 1, start=4000)
    started = plain.start()
    endpoint = plain.serve(started, port=port)
    assert endpoint.url == f"http://{LOOPBACK}:{port}"
    assert plain.wait(started, endpoint)[0].failure is None


def test_missing_interpreter_is_never_started(deploy, standin):
    plain = deploy(points=1)
    started = plain.start()
    plain.environment = standin.model_copy(update={"python": "/no/such/python"})
    endpoint = plain.serve(started)
    assert endpoint.failure.reason == "never_started" and "/no/such/python" in endpoint.failure.detail
    assert_all_gone(plain)


def test_missing_runtime_of_an_image_is_named(deploy, standin, tmp_path, monkeypatch):
    plain = deploy(points=1)
    started = plain.start()
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    image = Container(image="/x.sqsh", runtime="podman-hpc", place="/x.sqsh", digest="sha256:" + "0" * 64)
    plain.environment = standin.model_copy(update={"container": image})
    failure = plain.serve(started).failure
    assert failure.reason == "never_started" and "podman-hpc" in failure.detail and "podman-hpc" in failure.remedy
    assert_all_gone(plain)


def test_dead_supervisor_at_server_start_is_named(deploy):
    plain = deploy(points=1)
    started = plain.start()
    kill_supervisor(plain)
    endpoint = plain.serve(started)
    assert (endpoint.failure.reason, endpoint.failure.log) == ("keeper_ended", str(plain.attempt / "supervisor.log"))
    assert plain.left == []
