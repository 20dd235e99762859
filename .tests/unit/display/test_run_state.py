"""The state of a run from its lines of progress: counts, rows, and the estimate of the time left."""

from __future__ import annotations

import pytest

from servemark.display.run_state import RunState

POINTS = {"a": ("chat-c1-r1", "chat-c1-r2", "chat-c8-r1"), "b": ("chat-c1-r1", "chat-c8-r1")}


class Run:
    """A run whose lines are fed one by one."""

    def __init__(self, **more):
        self.state, self.now = RunState(POINTS, **more), 100.0

    def line(self, subject, stage, text="", *, after=0.0, **more):
        self.now += after
        self.state.update({"time": self.now, "stage": stage, "subject": subject, "text": text, "log": "", **more})

    def point(self, subject, name, phase="finished", *, after=0.0, **more):
        self.line(subject, "measure", name, after=after, point={"name": name, "phase": phase, **more})


def test_finished_points_are_counted_once():
    run = Run(finished={("b", "chat-c1-r1")})
    run.point("a", "chat-c1-r1", verdict="VALID", from_ledger=True)
    run.point("a", "chat-c1-r1", verdict="VALID")
    assert (run.state.total, len(run.state.finished), run.state.from_ledger) == (5, 2, 1)


def test_point_that_is_measured_again_is_not_finished():
    run = Run(finished={("a", "chat-c1-r1")})
    run.point("a", "chat-c1-r1", "starting the client")
    assert run.state.finished == set()


def test_no_estimate_before_the_first_measured_point():
    run = Run()
    run.point("a", "chat-c1-r1", from_ledger=True)
    assert run.state.left_s(run.now) is None


@pytest.mark.parametrize(("at_once", "left"), [(False, 10 + 40 + 10 + 40), (True, 50)])
def test_estimate_takes_points_of_the_same_load(at_once, left):
    run = Run(at_once=at_once)
    run.point("a", "chat-c1-r1", seconds=10.0)
    run.state._seconds["chat-c8"] = [40.0]
    assert run.state.left_s(run.now) == left


def test_estimate_adds_the_start_of_deployments_that_have_not_started():
    run = Run()
    run.line("a", "start_cluster", "nodes")
    run.line("a", "await_ready", "ready", after=60.0)
    run.line("a", "await_ready", ended=True)
    for name in POINTS["a"]:
        run.point("a", name, seconds=10.0)
    assert run.state.left_s(run.now) == 60.0 + 2 * 10.0


def test_estimate_leaves_out_the_wait_for_the_machine():
    run = Run()
    run.line("a", "start_cluster", "in use", queued=True)
    run.line("a", "start_cluster", "nodes", after=900.0)
    run.line("a", "await_ready", "ready", after=60.0)
    run.line("a", "await_ready", ended=True)
    run.point("a", "chat-c1-r1", seconds=10.0)
    assert run.state.left_s(run.now) == 4 * 10.0 + 60.0
    run.line("b", "start_cluster", "nodes")
    assert run.state.left_s(run.now + 25.0) == 4 * 10.0 + 35.0


def test_estimate_subtracts_the_time_of_the_current_point():
    run = Run()
    run.point("a", "chat-c1-r1", seconds=10.0)
    run.point("a", "chat-c1-r2", "measuring", finished=1, requests=6)
    first = run.state.left_s(run.now)
    assert run.state.left_s(run.now + 4.0) == first - 4.0
    assert run.state.left_s(run.now + 400.0) == first - 10.0, "a point that takes longer than expected is about to end"


def test_estimate_is_zero_at_the_end():
    run = Run()
    for deployment, names in POINTS.items():
        for name in names:
            run.point(deployment, name, seconds=1.0)
    assert run.state.left_s(run.now) == 0.0


def test_row_keeps_its_begin_within_a_stage_and_a_point():
    run = Run()
    run.line("a", "await_ready", "loading weights")
    run.line("a", "await_ready", "profiling", after=5.0)
    assert (run.state.rows["a"].since, run.state.rows["a"].heard, run.state.rows["a"].text) == (100.0, 105.0, "profiling")
    run.point("a", "chat-c1-r1", "warm-up")
    run.point("a", "chat-c1-r1", "measuring", after=3.0)
    assert run.state.rows["a"].since == 105.0
    run.point("a", "chat-c1-r2", "starting the client", after=3.0)
    assert run.state.rows["a"].since == 111.0


def test_row_of_a_deployment_ends_with_its_last_stage():
    run = Run()
    run.line("cpu", "build_environment", "installing")
    run.line("a", "serve_model", "started")
    for subject, stage in (("cpu", "build_environment"), ("a", "serve_model")):
        run.line(subject, stage, ended=True)
    assert set(run.state.rows) == {"a"}
    for stage in ("stop_deployment", "account_allocation"):
        run.line("a", stage, "working")
        run.line("a", stage, ended=True)
        assert run.state.rows == {}


def test_environment_with_the_name_of_a_deployment_has_its_own_row():
    run = Run()
    run.line("a", "serve_model", "started")
    run.line("a", "build_environment", "installing")
    assert sorted((row.subject, row.stage) for row in run.state.rows.values()) == [("a", "build_environment"), ("a", "serve_model")]
    run.line("a", "build_environment", ended=True)
    assert [row.stage for row in run.state.rows.values()] == ["serve_model"]


def test_stage_without_a_subject_has_a_row_of_its_own():
    run = Run()
    run.line("", "write_report", "drawing")
    assert run.state.rows["write_report"].text == "drawing"
    run.line("", "write_report", ended=True)
    assert run.state.rows == {}
