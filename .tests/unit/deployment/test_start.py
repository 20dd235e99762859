"""start_cluster on one machine: deployments take turns, and processes of earlier attempts are ended first."""

from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path

import psutil
import pytest

from builders.deployed import assert_all_gone, assert_no_figure, kill_supervisor, reasons
from builders.places import site_packages
from servemark import supervisor
from servemark.deployment import attempts, cluster
from servemark.files import content
from servemark.files.content import Hashes
from servemark.processes import identity


def test_failed_cluster_is_passed_on_and_starts_nothing(deploy):
    plain = deploy(points=1)
    (Path(plain.manifest.path) / "config.json").write_text("{}")
    started = plain.start()
    assert (started.failure.stage, started.failure.reason) == ("start_cluster", "weights_changed")
    assert "truncated: config.json" in started.failure.detail
    endpoint = plain.serve(started)
    assert endpoint.failure == started.failure and endpoint.url is None
    ready, startup = plain.wait(started, endpoint)
    assert ready.failure == startup.failure == started.failure
    assert_all_gone(plain)
    assert plain.measure().failure == started.failure


def test_changed_package_or_named_file_fails_before_a_server_starts(deploy, standin_copy, tmp_path):
    template = tmp_path / "template.jinja"
    template.write_text("one")
    named = {str(template): content.of_path(str(template), Hashes(None, ""))}
    plain = deploy(points=1, environment=standin_copy)
    plain.plan = plain.plan.model_copy(update={"contents": named})
    assert plain.start().failure is None
    template.write_text("two")
    started = plain.start()
    assert (started.failure.reason, str(template) in started.failure.detail) == ("content_changed", True)
    (site_packages(standin_copy) / "torch" / "__init__.py").write_text("")
    assert plain.start().failure.reason == "environment_changed"


def test_broken_interpreter_fails_before_start(deploy, standin):
    plain = deploy(points=1, environment=standin.model_copy(update={"python": "/no/such/python"}))
    started = plain.start()
    assert (started.failure.stage, started.failure.reason) == ("start_cluster", "environment_broken")
    assert "/no/such/python" in started.failure.detail and started.failure.remedy
    assert_all_gone(plain)


def test_next_start_ends_orphans_of_killed_supervisor(deploy, wait_for):
    plain = deploy(points=1)
    plain.up()
    kill_supervisor(plain)
    record = plain.measure()
    assert_no_figure(plain, record)
    assert "server_died" in reasons(record)
    wait_for(lambda: len(plain.left) == 1)
    (engine,) = plain.left
    assert psutil.Process(int(engine.split()[0])).name() == "EngineCore"
    started = plain.start()
    assert started.failure is None and plain.attempt.name == "002"
    assert any(engine in text for text in plain.told.words)
    plain.stop()
    assert plain.left == []


def test_running_earlier_attempt_is_ended_before_next(deploy):
    plain = deploy(points=1)
    plain.up()
    old = plain.attempt
    started = plain.start()
    assert started.failure is None and plain.attempt.name == "002"
    assert any("(001)" in text for text in plain.told.words)
    assert supervisor.read_state(old).state == "ended" and identity.marked(old) == []


def test_second_deployment_waits_for_the_machine(deploy, wait_for):
    first, second = deploy(name="first", points=1), deploy(name="second", points=1)
    first.start()
    started = []
    thread = threading.Thread(target=lambda: started.append(second.start()))
    thread.start()
    wait_for(lambda: any("waiting for the machine, in use by deployment first" in text for text in second.told.words))
    assert supervisor.read_state(second.attempt).state == "waiting" and not started
    first.stop()
    thread.join(120)
    assert started[0].failure is None and supervisor.read_state(second.attempt).state == "running"


def test_points_measured_meanwhile_are_not_repeated(deploy, wait_for):
    first, second = deploy(name="first", points=1), deploy(name="second", points=1)
    assert first.plan.points[0].key == second.plan.points[0].key
    first.up()
    started = []
    thread = threading.Thread(target=lambda: started.append(second.start()))
    thread.start()
    wait_for(lambda: any("waiting for the machine" in text for text in second.told.words))
    record = first.measure()
    first.stop()
    thread.join(120)
    assert started[0].replay and attempts.every(second.folder) == []
    assert second.measure().output_throughput == record.output_throughput


@pytest.mark.parametrize(("end", "reason"), [("stopped", "stop_requested"), ("killed", "keeper_ended")])
def test_supervisor_ended_while_waiting_for_machine_ends_wait(deploy, wait_for, end, reason):
    first, second = deploy(name="first", points=1), deploy(name="second", points=1)
    first.start()
    started = []
    thread = threading.Thread(target=lambda: started.append(second.start()))
    thread.start()
    wait_for(lambda: attempts.latest(second.folder) and supervisor.is_alive(second.attempt))
    supervisor.stop(second.attempt, 60) if end == "stopped" else kill_supervisor(second)
    thread.join(120)
    assert started[0].failure.reason == reason
    assert supervisor.is_alive(first.attempt), "the other one is not disturbed"


def test_supervisor_without_state_ends_wait(deploy, monkeypatch):
    plain = deploy(points=1)
    monkeypatch.setattr(cluster, "SUPERVISOR_START_S", 0.2)
    monkeypatch.setattr(supervisor, "launch", lambda attempt, spec: None)
    started = plain.start()
    assert started.failure.reason == "keeper_ended"


def test_processes_of_another_checkout_stay_alive(deploy, tmp_path, monkeypatch, wait_for):
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    relative = Path("results/demo")
    for checkout in (here, elsewhere):
        (checkout / relative).mkdir(parents=True)
    monkeypatch.chdir(here)
    plain = deploy(root=relative, points=1)
    attempts.new(plain.folder)
    theirs = elsewhere / attempts.latest(plain.folder)
    stranger = subprocess.Popen(["sleep", "300"], env={**os.environ, **identity.mark(theirs)})
    try:
        wait_for(lambda: [p.pid for p in identity.marked(theirs)] == [stranger.pid])
        plain.start()
        plain.stop()
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()
