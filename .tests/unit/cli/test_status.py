"""What lives, as files, processes and Slurm say it; the table; and the way from a name to an end."""

from __future__ import annotations

import json
import shutil
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from servemark import supervisor
from servemark.cli import main as cli
from servemark.cli import status, stop
from servemark.cli.live import Jobs, Living, job_of, living
from servemark.cli.stop import NothingToStop, Stopping, choose
from servemark.deployment import attempts
from servemark.errors import ServemarkError
from servemark.processes import identity as processes
from servemark.records import write_atomically
from servemark.records.endpoint import EndpointStatus
from servemark.supervisor import KeeperSpec, KeeperState
from snakemake_executor_plugin_slurm_guarded import journal
from snakemake_executor_plugin_slurm_guarded.commands import CommandFailed, Trouble
from snakemake_executor_plugin_slurm_guarded.queries import Job
from snakemake_executor_plugin_slurm_guarded.records import Checkout
from snakemake_executor_plugin_slurm_guarded.states import State

NOW = 1_800_000_000.0
DEAD = processes.Identity(1, 1)
ELSEWHERE = processes.Identity(77, 5, "another-host")


def utc(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="milliseconds")


def slurm(**states: str):
    """Slurm with these jobs (``j7="RUNNING"``), and no other."""

    def ask(job_id: str) -> Job | None:
        word = states.get(f"j{job_id}")
        return Job(job_id, State.parse(word), reason="Priority") if word else None

    return Jobs(ask)


def no_slurm() -> Jobs:
    def ask(_: str) -> Job | None:
        raise CommandFailed(Trouble.MISSING, ["scontrol"], "no such program")

    return Jobs(ask)


class Results:
    """A results folder with one run, ``demo``."""

    def __init__(self, root: Path):
        self.root = root / "results"
        self.run = self.root / "demo"
        write_atomically(self.run / "config.json", "{}\n")

    def add(
        self,
        name: str = "plain",
        *,
        held: bool = False,
        state: str = "running",
        identity: processes.Identity | None = None,
        job: str | None = None,
        ends_at: float | None = None,
        beat: float | None = None,
        checkout: Checkout | None = None,
        **more: object,
    ) -> Path:
        folder = self.run / ("serving" if held else "deployments") / name
        attempt = attempts.new(folder)
        owner = f"job {job}" if job else "process 1:1@here"
        spec = KeeperSpec(
            deployment=name, lifeline=str(DEAD), machine_lock=None, tokens=(), scratch="/nowhere", ends_at=ends_at,
            stop_grace_s=1.0, owner=owner, checkout=checkout,
        )  # fmt: skip
        write_atomically(attempt / "keeper-spec.json", spec.model_dump_json())
        who = str(identity or processes.myself())
        word = KeeperState(state=state, identity=who, deployment=name, owner=owner, **more)
        write_atomically(attempt / "keeper.json", word.model_dump_json())
        if beat is not None:
            EndpointStatus(
                deployment=name, state="held", at=utc(beat), since=utc(beat - 60), url="http://10.0.0.1:20000",
                attempt=str(attempt), finished=12, running=3,
            ).write(folder / "status.json")  # fmt: skip
        return attempt

    def tell(self, name: str, text: str, moment: float) -> None:
        line = {"time": moment, "stage": "measure", "subject": name, "text": text, "log": ""}
        with open(self.run / "progress.jsonl", "a") as stream:
            stream.write(json.dumps(line) + "\n")

    def living(self, jobs: Jobs | None = None) -> list[Living]:
        return living(self.root, jobs or no_slurm(), NOW)


@pytest.fixture
def results(tmp_path) -> Results:
    return Results(tmp_path)


def test_nothing_lives_in_an_empty_or_missing_folder(tmp_path, results):
    assert living(tmp_path / "nothing", no_slurm()) == [] == results.living()


@pytest.mark.parametrize(
    ("facts", "jobs", "lives"),
    [
        ({}, no_slurm(), True),
        ({"identity": DEAD}, no_slurm(), None),
        ({"state": "ended"}, no_slurm(), None),
        ({"state": "ending", "why": "stop_requested"}, no_slurm(), True),
        # Another host: its job decides; without Slurm's word, how fresh its files are.
        ({"identity": ELSEWHERE, "job": "7"}, slurm(j7="RUNNING"), True),
        ({"identity": ELSEWHERE, "job": "7"}, slurm(j7="COMPLETING"), True),
        ({"identity": ELSEWHERE, "job": "7"}, slurm(j7="TIMEOUT"), None),
        ({"identity": ELSEWHERE, "job": "7"}, slurm(), None),
        ({"identity": ELSEWHERE, "job": "7", "held": True, "beat": NOW - 2}, slurm(), None),
        ({"identity": ELSEWHERE, "job": "7", "held": True, "beat": NOW - 2}, no_slurm(), True),
        ({"identity": ELSEWHERE, "held": True, "beat": NOW - 2}, no_slurm(), True),
        ({"identity": ELSEWHERE, "held": True, "beat": NOW - 600}, no_slurm(), False),
        ({"identity": ELSEWHERE, "job": "7"}, no_slurm(), False),
        # A job that is over does not live on this host either, whatever the pid.
        ({"job": "7"}, slurm(), None),
    ],
)
def test_what_lives_is_found_and_what_is_gone_is_not(results, facts, jobs, lives):
    results.add(**facts)
    assert [one.sure for one in results.living(jobs)] == ([] if lives is None else [lives])


def test_only_the_latest_attempt_counts(results):
    results.add()
    results.add(state="ended")
    assert results.living() == []


def test_a_measured_deployment_and_a_held_endpoint_tell_what_they_do(results):
    results.tell("a", "chat-c1-r1: 6 requests", NOW - 1)
    results.tell("b", "something else", NOW - 1)
    results.add("a", ends_at=NOW + 130)
    results.add("b", held=True, beat=NOW - 1)
    results.add("c", state="waiting", waiting_for="deployment x (keeper 1, since)")
    a, c, b = results.living()
    assert (a.purpose, a.state, a.left_s, a.url) == ("measured", "measure: chat-c1-r1: 6 requests", 100.0, None)
    assert (b.purpose, b.state, b.finished, b.running, b.url) == ("held", "ready", 12, 3, "http://10.0.0.1:20000")
    assert b.since == NOW - 61 and b.left_s is None
    assert c.state == "waits for the machine, in use by deployment x"


def test_a_heartbeat_of_an_earlier_attempt_is_not_this_ones(results):
    results.add("a", held=True, beat=NOW - 1, state="ended")
    results.add("a", held=True)
    (one,) = results.living()
    assert one.url is None and one.state == "starting"


def test_a_job_that_waits_in_the_queue_is_shown_until_it_has_begun(results):
    file = results.run / "slurm" / "jobs.jsonl"
    journal.append(file, "run", run="r")
    for number, name in (("7", "a"), ("8", "b"), ("9", "c")):
        journal.append(file, "submitted", run="r", job=number, wildcards={"deployment": name})
    journal.append(file, "submitted", run="r", job="10", wildcards={"environment": "e"})
    journal.append(file, "ended", run="r", job="9")
    journal.append(file, "submitted", run="r", job="11", wildcards={"deployment": "d"})
    results.add("b", job="8", identity=ELSEWHERE)
    found = results.living(slurm(j7="PENDING", j8="RUNNING", j9="PENDING", j10="PENDING", j11="RUNNING"))
    assert [(one.deployment, one.purpose, one.job_id) for one in found] == [
        ("b", "measured", "8"),
        ("a", "queued", "7"),
        ("d", "queued", "11"),
    ]
    assert found[2].state == "its job is RUNNING, and no server of it lives"
    assert "PENDING" in found[1].state and "Priority" in found[1].state and "higher priority" in found[1].state
    journal.append(file, "run_ended", run="r")
    assert len(results.living(slurm(j7="PENDING", j8="RUNNING"))) == 1


@pytest.mark.parametrize(("owner", "job"), [("job 42", "42"), ("job 42, start 2", "42"), ("process 1:2@h", None), (None, None)])
def test_the_job_in_an_owners_name(owner, job):
    assert job_of(owner) == job


def test_slurm_is_not_asked_again_after_a_failure():
    asked = []

    def ask(job: str) -> Job | None:
        asked.append(job)
        raise CommandFailed(Trouble.UNREACHABLE, ["scontrol"], "no")

    jobs = Jobs(ask)
    assert jobs.lives("1") is None and jobs.lives("2") is None and asked == ["1"]


def test_the_table_and_the_json(results):
    results.add("a", held=True, beat=NOW - 1, ends_at=NOW + 3630)
    results.add("b", identity=ELSEWHERE)
    found = results.living()
    text = status.table(found, NOW)
    head, b, a, *below = text.splitlines()
    assert head.split() == list(status.COLUMNS)
    assert b.split()[:4] == ["demo", "b", "measuring", "another-host"] and b.endswith(" ?")
    assert "1:00:00" in a and "12 (+3 now)" in a and a.endswith("ready")
    assert "http://10.0.0.1:20000/v1" in below[1] and "how-to-use.txt" in below[1] and below[-1].startswith("? =")
    items = {item["deployment"]: item for item in json.loads(status.as_json(found))}
    assert items["a"]["since"] == "2027-01-15T07:58:59+00:00" and items["a"]["left_s"] == 3600.0
    assert (items["b"]["sure"], items["a"]["sure"]) == (False, True)
    assert status.table([], NOW) == "Nothing lives in this checkout.\n"


def test_a_copy_of_a_checkout_shows_nothing_of_the_original(tmp_path, monkeypatch):
    own, copy = tmp_path / "own", tmp_path / "copy"
    own.mkdir()
    monkeypatch.chdir(own)
    checkout = Checkout.of(own)
    results = Results(Path())
    results.add("a", held=True, beat=NOW - 1, checkout=checkout)
    results.add("b", held=True, beat=NOW - 1, checkout=checkout, identity=ELSEWHERE, job="7")
    file = results.run / "slurm" / "jobs.jsonl"
    journal.append(file, "run", run="r", checkout=checkout.model_dump())
    journal.append(file, "submitted", run="r", job="8", wildcards={"deployment": "c"})
    jobs = {"j7": "RUNNING", "j8": "PENDING"}
    shutil.copytree(own, copy)
    shown = [one.deployment for one in results.living(slurm(**jobs))]
    monkeypatch.chdir(copy)
    assert shown == ["a", "b", "c"] and results.living(slurm(**jobs)) == []
    with pytest.raises(NothingToStop):
        choose(results.living(slurm(**jobs)), "a", None)
    monkeypatch.chdir(own.rename(tmp_path / "moved"))
    assert len(results.living(slurm(**jobs))) == 3


def test_a_job_number_that_slurm_gave_to_another_job_is_not_ours(results):
    file = results.run / "slurm" / "jobs.jsonl"
    journal.append(file, "run", run="r")
    journal.append(file, "submitted", run="r", job="7", wildcards={"deployment": "a"})
    for name, count in (("r", 1), ("another", 0)):
        assert len(results.living(Jobs(lambda job, name=name: Job(job, State.parse("RUNNING"), name=name)))) == count


# Stopping


def one(name: str, run: str = "demo", **more: object) -> Living:
    return Living(run, name, more.pop("purpose", "held"), "ready", **more)


@pytest.mark.parametrize(
    ("name", "run", "found"),
    [
        ("a", None, "demo"),
        ("b", "second", "second"),
        ("b", None, "fits 2"),
        ("c", None, "No deployment 'c'"),
        ("a", "second", "of run 'second'"),
    ],
)
def test_a_name_is_found_or_refused_with_what_there_is(name, run, found):
    there = [one("a"), one("b"), one("b", "second")]
    if found in ("demo", "second"):
        assert choose(there, name, run).run == found
        return
    with pytest.raises(NothingToStop, match=found) as caught:
        choose(there, name, run)
    assert caught.value.exit_code == 2 and "b (run second, held): ready" in caught.value.what


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
    return lambda: write_atomically(attempt / "keeper.json", state.model_copy(update={"state": "ended", **more}).model_dump_json())


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"why": "stop_requested"}, "plain ended after 3."),
        ({"why": "out_of_time"}, "(out_of_time)"),
        ({"why": "stop_requested", "leftovers": ("7 vllm",)}, "these had to be killed: 7 vllm"),
    ],
)
def test_it_is_asked_and_waited_for(results, more, said):
    attempt = results.add()
    clock, words = Clock(3.0, ended(attempt, **more)), []
    Stopping(words.append, no_slurm(), clock=clock, sleep=clock.sleep).run(*results.living())
    assert (attempt / "stop").exists() and said in words[-1]


def test_a_keeper_that_is_gone_without_a_word_is_not_waited_for(results):
    attempt = results.add()
    state = supervisor.read_state(attempt).model_copy(update={"identity": str(DEAD)})
    clock, words = Clock(1.0, lambda: write_atomically(attempt / "keeper.json", state.model_dump_json())), []
    Stopping(words.append, no_slurm(), clock=clock, sleep=clock.sleep).run(*results.living())
    assert "gone without a word" in words[-1] and clock.now < 2


def test_what_does_not_end_is_told_and_a_job_is_cancelled(results):
    results.add("a")
    results.add("b", job="8", identity=ELSEWHERE)
    a, b = results.living(slurm(j8="RUNNING"))
    clock, words = Clock(), []
    with pytest.raises(ServemarkError, match="did not end within 16 s"):
        Stopping(words.append, no_slurm(), clock=clock, sleep=clock.sleep).run(a)

    states, cancelled = {"j8": "RUNNING"}, []

    def cancel(job: str) -> None:
        cancelled.append((job, clock.now))
        states["j8"] = "CANCELLED"

    clock = Clock()
    jobs = Jobs(lambda job: Job(job, State.parse(states[f"j{job}"])))
    Stopping(words.append, jobs, cancel, clock=clock, sleep=clock.sleep).run(b)
    ((job, moment),) = cancelled
    assert job == "8" and 76 <= moment < 77, "1 s of grace, the margin, and what a network file system's cache may take"
    assert "cancelling its job 8" in words[-2] and "out of the queue" in words[-1]


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
    assert len(signalled) == 1 and "a ended after" in words[-1]

    def cancel(job: str) -> None:
        states[f"j{job}"] = "CANCELLED"

    Stopping(words.append, jobs, cancel, clock=clock, sleep=clock.sleep).run(b)
    assert "No space left" in words[-2] and "out of the queue" in words[-1]


def test_a_job_in_the_queue_is_cancelled_at_once():
    cancelled, words, states = [], [], ["PENDING", "CANCELLED"]
    jobs = Jobs(lambda job: Job(job, State.parse(states.pop(0))))
    clock = Clock()
    queued = one("a", purpose="queued", job_id="7")
    Stopping(words.append, jobs, cancelled.append, clock=clock, sleep=clock.sleep).run(queued)
    assert cancelled == ["7"] and "out of the queue" in words[-1]


@pytest.mark.parametrize("trouble", ["refused", "stays"])
def test_a_job_that_cannot_be_cancelled_is_told(trouble):
    def cancel(_: str) -> None:
        if trouble == "refused":
            raise CommandFailed(Trouble.REFUSED, ["scancel"], "Access denied")

    clock = Clock()
    stuck = Stopping(lambda _: None, slurm(j7="COMPLETING"), cancel, clock=clock, sleep=clock.sleep)
    with pytest.raises(ServemarkError, match="Access denied" if trouble == "refused" else "still in the queue"):
        stuck.run(one("a", purpose="queued", job_id="7"))
    assert clock.now < 120


def test_the_command_stops_by_name_and_answers_with_exit_codes(results, monkeypatch, capsys):
    monkeypatch.chdir(results.root.parent)
    attempt = results.add()
    assert cli.main(["stop", "nobody"]) == 2
    assert "plain (run demo, measured)" in capsys.readouterr().err
    monkeypatch.setattr(stop, "POLL_S", 0.01)
    begin = time.monotonic()
    monkeypatch.setattr(stop.supervisor, "read_state", _ended_when_asked(attempt))
    assert cli.main(["stop", "plain"]) == 0
    assert "plain ended after" in capsys.readouterr().out and time.monotonic() - begin < 5
    assert cli.main(["status", "--json"]) == 0


def _ended_when_asked(attempt: Path):
    real = supervisor.read_state

    def read(path: Path):
        state = real(path)
        return state.model_copy(update={"state": "ended", "why": "stop_requested"}) if (attempt / "stop").exists() else state

    return read
