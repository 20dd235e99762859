"""stop_deployment ends all processes, checks that none is left, and names those that it killed."""

from __future__ import annotations

import dataclasses
import itertools
import os
import shutil
import signal
import subprocess
import time
from types import SimpleNamespace

import pytest

from builders.deployed import assert_all_gone, kill_supervisor
from servemark import supervisor
from servemark.config.cluster import Site
from servemark.deployment import attempts, cluster
from servemark.deployment import stop as stop_module
from servemark.deployment.telemetry import SAMPLER
from servemark.errors import ServemarkError
from servemark.nodes import survey
from servemark.processes import identity
from servemark.supervisor import ownership


def test_stop_ends_processes_that_a_killed_supervisor_left(deploy, wait_for):
    plain = deploy(points=1)
    plain.up()
    kill_supervisor(plain)
    wait_for(lambda: len(plain.left) == 1)
    (engine,) = plain.left
    stopped = plain.stop()
    assert engine in stopped.leftovers
    assert plain.left == []


def test_stop_reports_attempt_with_deleted_files(deploy):
    plain = deploy(points=1)
    plain.up()
    before = plain.stop()
    (plain.attempt / "supervisor-spec.json").unlink()
    assert plain.stop().daemons == before.daemons


def test_server_ignoring_term_is_killed_and_named(deploy):
    plain = deploy(points=1, variables={"STANDIN_FAULT": "ignore_term"})
    plain.up()
    pid = plain.pid()
    begin = time.monotonic()
    stopped = plain.stop()
    assert time.monotonic() - begin < 60
    assert any(text.startswith(f"{pid} ") for text in stopped.leftovers)
    assert {daemon.name: daemon.signal for daemon in stopped.daemons} == {SAMPLER: None, "server": signal.SIGKILL}
    assert_all_gone(plain)


def test_process_that_cannot_be_ended_is_named(deploy, monkeypatch):
    plain = deploy(points=1)
    plain.start()
    stuck = subprocess.Popen(["sleep", "300"], env={**os.environ, **identity.mark(plain.attempt)})
    ticks = itertools.count()
    try:
        with monkeypatch.context() as patch:
            patch.setattr(identity, "signal_all", lambda found, number: None)
            patch.setattr(survey, "time", SimpleNamespace(monotonic=lambda: next(ticks), sleep=lambda _: None))
            with pytest.raises(ServemarkError, match=f"{stuck.pid} sleep 300") as failed:
                plain.stop()
        assert failed.value.reason == "cannot_stop"
    finally:
        stuck.kill()
        stuck.wait()


def test_process_started_during_stop_is_ended(deploy, monkeypatch):
    plain = deploy(points=1)
    plain.start()
    begun = []

    def late(found, number, kill=identity.signal_all):
        if not begun:
            begun.append(subprocess.Popen(["sleep", "300"], env={**os.environ, **identity.mark(plain.attempt)}))
        kill(found, number)

    monkeypatch.setattr(identity, "signal_all", late)
    left = subprocess.Popen(["sleep", "300"], env={**os.environ, **identity.mark(plain.attempt)})
    try:
        plain.stop()
        assert [left.wait(60), begun[0].wait(60)] == [-9, -9]
    finally:
        for process in (left, *begun):
            process.kill()
            process.wait()


def test_stop_without_an_attempt_is_a_replay(deploy):
    stopped = deploy(points=1).stop()
    assert (stopped.replay, stopped.attempt, stopped.daemons) == (True, None, ())


@pytest.mark.parametrize(("owner", "swept"), [("job 1", True), ("job 9", False)])
def test_nodes_are_swept_only_in_attempts_own_allocation(deploy, slurm, tmp_path, monkeypatch, owner, swept):
    monkeypatch.setenv(ownership.VARIABLE, "job 1")
    scratch = tmp_path / "scratch"
    scratch.mkdir(mode=0o700)
    plain = deploy(points=1, site=Site.model_construct(scheduler="slurm", interface="lo", scratch=str(scratch)))
    assert plain.start().failure is None
    left = subprocess.Popen(["sleep", "300"], env={**os.environ, **identity.mark(plain.attempt)})
    monkeypatch.setenv(ownership.VARIABLE, owner)
    monkeypatch.setattr(stop_module.attempts, "left_over", lambda *_: [])
    before = len(slurm.calls("srun"))
    try:
        stopped = plain.stop()
        assert len(slurm.calls("srun")) - before == swept
        assert any(f": {left.pid} sleep 300" in words for words in stopped.leftovers) is swept
        assert (left.poll() is not None) is swept
    finally:
        left.kill()
        left.wait()


def test_copied_checkout_ends_no_process_of_the_original(deploy, tmp_path, monkeypatch):
    own, copy = tmp_path / "own", tmp_path / "copy"
    for folder in (own, copy):
        folder.mkdir()
    monkeypatch.chdir(own)
    plain = deploy(points=1)
    plain.up()
    there = dataclasses.replace(plain, root=copy)
    shutil.copytree(plain.folder, there.folder, dirs_exist_ok=True)
    scratch, before = attempts.scratch_folder(plain.attempt), list(plain.left)
    monkeypatch.chdir(copy)
    begin = time.monotonic()
    cluster._end_leftovers(there.folder, there.told)
    assert there.stop().leftovers == () and there.left == []
    assert time.monotonic() - begin < 3, "no wait"
    monkeypatch.chdir(own)
    assert supervisor.is_alive(plain.attempt) and plain.left == before and scratch.is_dir()
    monkeypatch.chdir(own.rename(tmp_path / "moved"))
    assert supervisor.is_alive(plain.attempt)
