"""Several servers behind one address, with real processes: a stand-in router in front of two stand-in servers."""

from __future__ import annotations

import os
import signal

import httpx
import pytest

from builders.deployed import assert_all_gone, assert_no_figure, planned_point, reasons, verdict
from builders.places import described
from builders.standin_router import put_router
from builders.standin_running import free_port
from servemark.deployment import attempts
from servemark.deployment.telemetry import SAMPLER
from servemark.measurement.raw import read_raw
from servemark.records import Topology


@pytest.fixture
def pair(deploy, standin_copy, monkeypatch):
    """A deployment of two replicas of one device each."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")

    def make(**given):
        put_router(standin_copy)
        topology = Topology(devices_per_node=2, replicas=2)
        return deploy(**({"environment": described(standin_copy), "topology": topology} | given))

    return make


def test_two_replicas_share_requests_behind_one_address(pair):
    plain = pair(points=1)
    started = plain.start()
    endpoint = plain.serve(started)
    ready, startup = plain.wait(started, endpoint)
    assert ready.failure is None, ready.failure
    assert (ready.url, ready.servers, ready.router) == (endpoint.router.url, endpoint.servers, endpoint.router)
    assert [start.replica for start in startup.replicas] == ["r0", "r1"]
    last = max(start.seconds_to_first_token for start in startup.replicas)
    assert startup.seconds_to_first_token == last and startup.router == endpoint.router
    for url in (ready.url, *(server.url for server in ready.servers)):
        assert httpx.get(f"{url}/v1/models", trust_env=False).status_code == 401, url
    assert any(words.startswith("waiting for vLLM (r0 on ") for words in plain.told.words)

    record = plain.measure()
    assert (verdict(record), record.completed) == ("VALID", 4), record.reasons
    # The client's warm-up is counted too.
    assert sorted(record.replica_requests) == ["r0", "r1"] and sorted(record.replica_requests.values()) == [2, 3]
    stopped = plain.stop()
    assert {daemon.name for daemon in stopped.daemons} == {SAMPLER, "server-r0", "server-r1", "router", "client-server"}
    assert_all_gone(plain)


def test_a_router_balances_the_engines_of_one_server(pair):
    topology = Topology(devices_per_node=2, data_parallel=2, balancing="router", routing="least_requests", executor="mp")
    port = free_port()
    plain = pair(points=1, topology=topology)
    started = plain.start()
    endpoint = plain.serve(started, port)
    ready, _ = plain.wait(started, endpoint)
    assert ready.failure is None, ready.failure
    (server,) = endpoint.servers
    assert ready.url == endpoint.router.url != server.url and ready.url.endswith(f":{port}")
    argv = endpoint.router.argv
    assert argv[argv.index("--intra-node-data-parallel-size") + 1] == "2"
    assert argv[argv.index("--policy") + 1] == "cache_aware"
    assert httpx.get(f"{server.url}/v1/models", trust_env=False).status_code == 401
    # The router looks there without a key.
    assert httpx.get(f"{server.url}/health", trust_env=False).status_code == 200
    record = plain.measure()
    assert (verdict(record), record.completed) == ("VALID", 4), record.reasons
    stopped = plain.stop()
    assert "router" in {daemon.name for daemon in stopped.daemons}
    assert_all_gone(plain)


def test_load_past_router_goes_to_server_with_engines(pair):
    topology = Topology(devices_per_node=2, data_parallel=2, balancing="router", executor="mp")
    plain = pair(points=1, topology=topology)
    second = planned_point(2, plain.plan.key_parts, ask="replica")
    plain.plan = plain.plan.model_copy(update={"points": (*plain.plan.points, second)})
    ready = plain.up()
    assert ready.url != ready.servers[0].url
    assert (verdict(plain.measure(2)), plain.plan.topology.asked("replica").balancing) == ("VALID", "server")
    plain.stop()
    assert_all_gone(plain)


def test_three_client_processes_share_load_over_two_replicas(pair):
    plain = pair(points=2, point={"concurrency": 6, "requests": 32, "warmups": 2, "clients": 3})
    second = planned_point(2, plain.plan.key_parts, concurrency=3, requests=6, warmups=1, ask="replica")
    plain.plan = plain.plan.model_copy(update={"points": (plain.plan.points[0], second)})
    ready = plain.up()
    shared = plain.measure(1)
    assert (verdict(shared), shared.completed, shared.load.clients, shared.load.ask) == ("VALID", 32, 3, "endpoint"), shared.reasons
    assert sum(shared.replica_requests.values()) == 34 and min(shared.replica_requests.values()) >= 16
    raw = read_raw(plain.raw(1))
    assert [(client.num_prompts, len(client.requests)) for client in raw.clients] == [(11, 11), (11, 11), (10, 10)]
    assert shared.duration_s == raw.duration_s >= max(client.duration_s for client in raw.clients)
    alone = plain.measure(2)
    assert (verdict(alone), alone.load.clients, alone.load.ask) == ("VALID", 1, "replica"), alone.reasons
    # The client's warm-up is counted too.
    assert alone.replica_requests == {"r0": 7, "r1": 0}
    assert ready.servers[0].url in alone.client_argv and ready.url in shared.client_argv
    assert sorted(path.name for path in plain.raw(1).parent.iterdir()) == sorted([shared.raw, alone.raw])
    plain.stop()
    assert_all_gone(plain)


def test_dead_replica_ends_the_deployment_and_is_named(pair):
    plain = pair(points=2, variables={"STANDIN_TOKEN_S": "0.05"}, point={"output_tokens": 40})
    plain.up()
    os.kill(plain.pid("server-r1"), signal.SIGKILL)
    first = plain.measure(1)
    assert_no_figure(plain, first)
    assert "server_died" in reasons(first) and "server-r1 (pid" in first.failure.detail
    assert first.failure.log == str(plain.attempt / "server-r1.log")
    assert plain.measure(2).failure == first.failure
    assert_all_gone(plain)


def test_a_replica_that_hangs_is_named(pair, tmp_path):
    # Both replicas have the fault: the first one is named.
    fault = tmp_path / "fault"
    plain = pair(points=1, variables={"STANDIN_FAULT_FILE": str(fault)})
    plain.timeouts = plain.timeouts.model_copy(update={"no_progress": 1.0, "point": 60.0})
    plain.up()
    fault.write_text("hang")
    record = plain.measure()
    assert_no_figure(plain, record)
    assert record.failure.reason == "server_hung"
    assert "server-r0" in record.failure.detail and "/metrics" in record.failure.detail
    assert record.failure.log == str(plain.attempt / "server-r0.log")
    assert_all_gone(plain)


@pytest.mark.parametrize(
    ("fault", "timeouts", "reason", "words"),
    [
        ("open", {}, "open_door", "/liveness returns 200 without the API key; expected 401"),
        ("broken", {"start": 10.0}, "startup_timeout", "not ready after 10 s. Last check: /v1/models returns 503"),
        ("ends", {}, "server_exited", "while starting, router (pid"),
    ],
)
def test_faulty_router_ends_the_start(pair, monkeypatch, fault, timeouts, reason, words):
    monkeypatch.setenv("STANDIN_ROUTER", fault)
    plain = pair(points=1)
    started = plain.start()
    endpoint = plain.serve(started)
    plain.timeouts = plain.timeouts.model_copy(update=timeouts)
    ready, startup = plain.wait(started, endpoint)
    assert ready.failure == startup.failure and ready.failure.reason == reason and words in ready.failure.detail
    assert startup.log == str(plain.attempt / "router.log") and startup.servers == endpoint.servers
    assert_all_gone(plain)


def test_router_starts_after_all_replicas_are_ready(pair):
    plain = pair(points=1, variables={"STANDIN_FAULT": "exit_at_start"})
    failure = plain.up().failure
    # The first one may end before the second one is started.
    assert failure.stage in ("serve_model", "await_ready") and failure.reason == "kv_cache_too_small"
    assert "server-r" in failure.detail and "code 1" in failure.detail and failure.quote and failure.remedy
    assert attempts.find_daemon(plain.attempt, "router") is None
    assert_all_gone(plain)


def test_server_with_metrics_open_without_key_is_not_used(deploy, monkeypatch):
    # As with a vLLM without the option for middleware: the stand-in starts without it.
    monkeypatch.setattr("servemark.launch.command_lines.key_arguments", list)
    plain = deploy(points=1)
    ready = plain.up()
    assert ready.failure.reason == "open_door" and ready.url is None
    assert all(word in ready.failure.detail for word in ("/metrics", "200", "401")) and ready.failure.remedy
    assert_all_gone(plain)
