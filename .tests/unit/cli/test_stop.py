"""``servemark stop``: finding a deployment by its name, ending it, and cancelling its job."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from builders.living import DEAD, ELSEWHERE, Results, no_slurm, slurm
from servemark import supervisor
from servemark.cli import main as cli
from servemark.cli import stop
from servemark.cli.live import Jobs, Living
from servemark.cli.stop import NothingToStop, Stopping, choose
from servemark.errors import ServemarkError
from servemark.processes import identity as processes
from servemark.records import write_atomically
from snakemake_executor_plugin_slurm_guarded.commands import CommandFailed, Trouble
from snakemake_executor_plugin_slurm_guarded.queries import Job
from snakemake_executor_plugin_slurm_guarded.states import State


@pytest.fixture
def results(tmp_path) -> Results:
    return Results(tmp_path)


def one(name: str, run: str = "demo", **more: object) -> Living:
    return Living(run, name, more.pop("purpose", "held"), "ready", **more)


@pytest.mark.parametrize(
    ("name", "run", "found", "reason"),
    [
        ("a", None, "demo", None),
        ("b", "second", "second", None),
        ("b", None, None, "ambiguous"),
        ("c", None, None, "nothing_to_stop"),
        ("a", "second", None, "nothing_to_stop"),
    ],
)
def test_unknown_name_is_refused_with_the_known_ones(name, run, found, reason):
    there = [one("a"), one("b"), one("b", "second")]
    if found:
        assert choose(there, name, run).run == found
        return
    with pytest.raises(NothingToStop) as caught:
        choose(there, name, run)
    assert (caught.value.reason, caught.value.exit_code) == (reason, 2)
    assert all(f"{listed.deployment} (run {listed.run}" in caught.value.what for listed in there)


class Clock:
    """Time that passes by sleeping; ``after`` is called once, at a given second."""

    def __init__(self, at: float = 0.0, then=lambda: None):
        self.now, self.at, self.then = 0.0, at, then

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        if self.now >= self.at:
            self.at = float("inf")
            self.then()


def ended(attempt: Path, **more: object):
    state = supervisor.read_state(attempt)
    return lambda: write_atomically(attempt / "supervisor.json", state.model_copy(update={"state": "ended", **more}).model_dump_json())


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"why": "stop_requested"}, " 3.0 s"),
        ({"why": "out_of_time"}, "(out_of_time)"),
        ({"why": "stop_requested", "leftovers": ("7 vllm",)}, " 7 vllm"),
    ],
)
def test_stop_waits_for_the_end_of_the_deployment(results, more, said):
    attempt = results.add()
    clock, words = Clock(3.0, ended(attempt, **more)), []
    Stopping(words.append, no_slurm(), clock=clock, sleep=clock.sleep).run(*results.living())
    assert (attempt / "stop").exists() and said in words[-1]


def test_stop_does_not_wait_for_a_killed_supervisor(results):
    attempt = results.add()
    state = supervisor.read_state(attempt).model_copy(update={"identity": str(DEAD)})
    clock, words = Clock(1.0, lambda: write_atomically(attempt / "supervisor.json", state.model_dump_json())), []
    Stopping(words.append, no_slurm(), clock=clock, sleep=clock.sleep).run(*results.living())
    assert len(words) == 2 and clock.now < 2


def test_deployment_that_does_not_end_is_named_and_its_job_cancelled(results):
    results.add("a")
    results.add("b", job="8", identity=ELSEWHERE)
    a, b = results.living(slurm(j8="RUNNING"))
    clock, words = Clock(), []
    with pytest.raises(ServemarkError) as caught:
        Stopping(words.append, no_slurm(), clock=clock, sleep=clock.sleep).run(a)
    assert caught.value.reason == "cannot_stop" and caught.value.look.endswith("supervisor.log") and 16 <= clock.now < 17

    states, cancelled = {"j8": "RUNNING"}, []

    def cancel(job: str) -> None:
        cancelled.append((job, clock.now))
        states["j8"] = "CANCELLED"

    clock = Clock()
    jobs = Jobs(lambda job: Job(job, State.parse(states[f"j{job}"])))
    Stopping(words.append, jobs, cancel, clock=clock, sleep=clock.sleep).run(b)
    ((job, moment),) = cancelled
    assert job == "8" and 76 <= moment < 77, "1 s of grace, the margin, and what a network file system's cache may take"
    assert "job 8" in words[-2] and "job 8" in words[-1]


def test_full_disk_does_not_prevent_a_stop(results, monkeypatch):
    attempt = results.add("a")
    results.add("b", job="8", identity=ELSEWHERE)
    states, signalled, words = {"j8": "RUNNING"}, [], []

    def refuse(*_, **__):
        raise OSError(28, "No space left on device")

    jobs = Jobs(lambda job: Job(job, State.parse(states[f"j{job}"])))
    a, b = results.living(jobs)
    monkeypatch.setattr(Path, "touch", refuse)
    monkeypatch.setattr(processes.Identity, "signal", lambda self, number: signalled.append(number))
    clock = Clock(3.0, ended(attempt, why="stop_requested"))
    Stopping(words.append, jobs, clock=clock, sleep=clock.sleep).run(a)
    assert len(signalled) == 1 and words[-1].startswith("a ended")

    def cancel(job: str) -> None:
        states[f"j{job}"] = "CANCELLED"

    Stopping(words.append, jobs, cancel, clock=clock, sleep=clock.sleep).run(b)
    assert "Errno 28" in words[-2] and states == {"j8": "CANCELLED"}


def test_queued_job_is_cancelled_at_once():
    cancelled, words, states = [], [], ["PENDING", "CANCELLED"]
    jobs = Jobs(lambda job: Job(job, State.parse(states.pop(0))))
    clock = Clock()
    queued = one("a", purpose="queued", job_id="7")
    Stopping(words.append, jobs, cancelled.append, clock=clock, sleep=clock.sleep).run(queued)
    assert cancelled == ["7"] and states == []


@pytest.mark.parametrize("trouble", ["refused", "stays"])
def test_job_that_cannot_be_cancelled_is_named(trouble):
    def cancel(_: str) -> None:
        if trouble == "refused":
            raise CommandFailed(Trouble.REFUSED, ["scancel"], "Access denied")

    clock = Clock()
    stuck = Stopping(lambda _: None, slurm(j7="COMPLETING"), cancel, clock=clock, sleep=clock.sleep)
    with pytest.raises(ServemarkError) as caught:
        stuck.run(one("a", purpose="queued", job_id="7"))
    assert caught.value.reason == "cannot_stop" and ("Access denied" in caught.value.what) == (trouble == "refused")
    assert (clock.now == 0) if trouble == "refused" else (90 <= clock.now < 92)


def test_stop_command_and_its_exit_codes(results, monkeypatch, capsys):
    monkeypatch.chdir(results.root.parent)
    attempt = results.add()
    assert cli.main(["stop", "nobody"]) == 2
    assert "plain (run demo" in capsys.readouterr().err
    monkeypatch.setattr(stop, "POLL_S", 0.01)
    begin = time.monotonic()
    monkeypatch.setattr(stop.supervisor, "read_state", _ended_when_asked(attempt))
    assert cli.main(["stop", "plain"]) == 0
    assert "plain ended" in capsys.readouterr().out and time.monotonic() - begin < 15, "shorter than the margin"
    assert cli.main(["status", "--json"]) == 0


def _ended_when_asked(attempt: Path):
    real = supervisor.read_state

    def read(path: Path):
        state = real(path)
        return state.model_copy(update={"state": "ended", "why": "stop_requested"}) if (attempt / "stop").exists() else state

    return read
