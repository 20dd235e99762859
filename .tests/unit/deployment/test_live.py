"""A whole deployment with real processes: supervisor, stand-in server and client. No process is left in any case."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from builders.deployed import assert_all_gone, reasons, verdict
from servemark import supervisor
from servemark.deployment import attempts
from servemark.deployment.telemetry import SAMPLER
from servemark.machine import network
from servemark.measurement.ledger import file_sha256
from servemark.processes import identity
from servemark.records import Fabric

LOOPBACK = "127.0.0.1"


def test_measured_deployment_is_replayed_from_ledger(deploy):
    plain = deploy()
    started = plain.start()
    assert (started.replay, started.failure, started.job_id, started.ends_at, started.ray_nodes) == (False, None, None, None, ())
    (node,) = started.nodes
    assert (node.address, node.interface, node.vllm, node.leftovers) == (LOOPBACK, "lo", "0.0.0+standin", ())
    assert [part.devices for part in started.replicas[0].parts] == [(0,)]
    assert plain.check(started) == Fabric(deployment="plain", attempt=started.attempt), "one node: nothing to check"
    assert started.attempt == str(plain.folder / "attempts" / "001")
    endpoint = plain.serve(started)
    key = Path(endpoint.key_file)
    assert key.stat().st_mode & 0o777 == 0o600 and key.read_text() not in " ".join(endpoint.servers[0].argv)
    assert int(endpoint.url.rpartition(":")[2]) in network.PORTS
    ready, startup = plain.wait(started, endpoint)
    assert (ready.failure, ready.url, ready.served_name) == (None, endpoint.url, "tiny")
    assert (ready.servers, ready.router, ready.client_node) == (endpoint.servers, None, node.name)
    assert (startup.nodes, startup.placement, startup.servers) == (started.nodes, started.replicas, endpoint.servers)
    assert 0 < startup.seconds_to_health <= startup.seconds_to_first_token < 90
    assert startup.observed["kv_cache_tokens"] == 65536
    phases = sum(phase.seconds for phase in startup.phases)
    assert phases == pytest.approx(startup.seconds_to_health, abs=0.01), "the first token's own time comes after them"
    for route in ("/v1/models", "/metrics", "/health"):
        assert httpx.get(ready.url + route).status_code == 401, "every route needs the key"

    first = plain.measure(1)
    assert (verdict(first), first.completed, first.failed) == ("VALID", 4, 0), first.reasons
    assert first.output_throughput > 0 and first.total_output_tokens == 20
    assert (Path(first.attempt).name, first.client_exit_code, first.client_node) == ("001", 0, node.name)
    # The client's warm-up is counted too.
    assert first.replica_requests == {"r0": 5}
    (engine,) = first.counters.engines
    assert (engine.replica, engine.engine, engine.finished, engine.preemptions) == ("r0", "0", 5, 0)
    assert engine.generated > first.total_output_tokens and first.thresholds == plain.verdict.model_dump(exclude={"max_repetition_spread"})
    assert file_sha256(plain.raw(1)) == first.raw_sha256 and first.raw == plain.raw(1).name
    assert [path.name for path in plain.raw(1).parent.iterdir()] == [first.raw], "no draft is left"
    second = plain.measure(2)
    assert verdict(second) == "VALID", second.reasons
    finished = [line["point"] for line in plain.told.lines if line.get("point", {}).get("phase") == "finished"]
    assert [(point["name"], point["verdict"]) for point in finished] == [("chat-c4-r1", first.verdict), ("chat-c4-r2", second.verdict)]

    stopped = plain.stop()
    assert (stopped.failure, Path(stopped.attempt).name, stopped.replay) == (None, "001", False)
    assert stopped.leftovers == ()
    assert {daemon.name: daemon.why for daemon in stopped.daemons} == dict.fromkeys((SAMPLER, "server", "client-server"), "stop_requested")
    assert not key.exists(), "secrets are removed"
    assert_all_gone(plain)

    plain.raw(1).unlink()
    replayed = plain.measure(1)
    assert replayed == first and file_sha256(plain.raw(1)) == first.raw_sha256
    started = plain.start()
    assert started.replay and started.attempt is None
    assert plain.check(started) == Fabric(deployment="plain", replay=True)
    endpoint = plain.serve(started)
    again, kept = plain.wait(started, endpoint)
    assert endpoint.replay and again.replay and kept == startup
    assert plain.measure(2) == second
    assert plain.stop().daemons == stopped.daemons
    assert len(attempts.every(plain.folder)) == 1, "nothing was started"


def test_new_attempt_after_death_measures_missing_points(deploy, tmp_path):
    fault = tmp_path / "fault"
    plain = deploy(variables={"STANDIN_FAULT_FILE": str(fault)})
    plain.up()
    good = plain.measure(1)
    fault.write_text("die_after:0")
    assert "server_died" in reasons(plain.measure(2))
    plain.stop()
    fault.write_text("none")
    plain.up()
    assert plain.attempt.name == "002"
    assert plain.measure(1) == good, "not measured twice"
    record = plain.measure(2)
    assert (verdict(record), Path(record.attempt).name) == ("VALID", "002")


def test_killed_run_ends_its_deployment(deploy, monkeypatch, wait_for):
    master = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
    monkeypatch.setenv(identity.OWNER_PROCESS_VARIABLE, str(identity.Identity.of(master.pid)))
    plain = deploy(points=1)
    plain.up()
    master.kill()
    master.wait()
    wait_for(lambda: supervisor.read_state(plain.attempt).state == "ended")
    assert_all_gone(plain)
    assert not any(record.exists() for record in plain.live_records), "no live record outlives its deployment"
