"""The client server of a deployment on a live stand-in: shared by its points, started again after its end."""

from __future__ import annotations

import os
import signal
import threading

from builders.deployed import assert_all_gone, assert_no_figure, reasons, verdict
from integration.harness import wait_until
from servemark import supervisor
from servemark.deployment import attempts, client_server
from servemark.records import DaemonState


def test_points_share_a_client_server_and_start_another_after_its_end(deploy):
    plain = deploy(points=4)
    plain.up()
    assert attempts.find_daemon(plain.attempt, client_server.NAME) is None, "it would delay the server's start"
    assert [verdict(plain.measure(number)) for number in (1, 2)] == ["VALID"] * 2
    (first,) = client_servers(plain)
    os.kill(first.pid, signal.SIGKILL)  # the supervisor may not have recorded its end when the next point begins
    assert verdict(plain.measure(3)) == "VALID"
    assert [(one.name, bool(one.ended_at)) for one in client_servers(plain)] == [("client-server", True), ("client-server-2", False)]
    assert verdict(plain.measure(4)) == "VALID" and len(client_servers(plain)) == 2
    assert (plain.stop().failure, plain.left) == (None, [])


def client_servers(plain) -> list[DaemonState]:
    return [daemon for daemon in supervisor.read_daemons(plain.attempt) if daemon.name.startswith(client_server.NAME)]


def test_client_server_killed_during_a_point_makes_only_that_point_invalid(deploy):
    plain = deploy(point={"requests": 40}, variables={"STANDIN_TOKEN_S": "0.1"})
    plain.up()
    log = plain.attempt / "server.log"

    def kill() -> None:
        wait_until(lambda: log.read_text().count("POST /v1/completions") > 8, 120, "it is measured")
        os.kill(client_servers(plain)[0].pid, signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    record = plain.measure(1)
    thread.join()
    assert_no_figure(plain, record)
    assert {"client_failed"} <= reasons(record) and (record.client_exit_code, record.failure) == (1, None)
    # The server may still generate for requests of the first point, which makes this one SUSPECT.
    assert plain.measure(2).output_throughput and len(client_servers(plain)) == 2
    assert (plain.stop().failure, plain.left) == (None, [])


def test_server_dead_before_the_client_starts_is_not_measured(deploy, monkeypatch):
    plain = deploy()
    plain.up()
    starts = client_server.running

    def dies(launcher, node, asked):
        os.kill(plain.pid(), signal.SIGKILL)
        wait_until(lambda: supervisor.read_state(plain.attempt).state == "ended", 60, "the deployment ended")
        return starts(launcher, node, asked)

    monkeypatch.setattr(client_server, "running", dies)
    record = plain.measure(1)
    assert_no_figure(plain, record)
    assert reasons(record) == {"server_died"} and record.client_argv == ()
    assert [path.name for path in plain.raw(1).parent.iterdir()] == [plain.raw(1).name], "no order is left"
    assert_all_gone(plain)
