"""How Slurm's output changes the state of jobs, how often it is queried, and what the user reads about waiting jobs."""

from __future__ import annotations

import itertools
import random
import threading
import time
from pathlib import Path

import pytest
from slurm_tools import MakeTool

from snakemake_executor_plugin_slurm_guarded import journal
from snakemake_executor_plugin_slurm_guarded.queries import Job
from snakemake_executor_plugin_slurm_guarded.reasons import LOST, STUCK
from snakemake_executor_plugin_slurm_guarded.states import State
from snakemake_executor_plugin_slurm_guarded.submit import Outage
from snakemake_executor_plugin_slurm_guarded.tracking import Timing, Tracked, Tracker, Watch

# One letter for each query, two seconds apart: the state in squeue, or in scontrol or sacct if squeue does not list the job.
LETTERS = {
    "P": "PENDING", "C": "CONFIGURING", "R": "RUNNING", "G": "COMPLETING", "s": "COMPLETED", "x": "CANCELLED",
    "f": "FAILED", "t": "TIMEOUT", "n": "NODE_FAIL", "p": "PREEMPTED", "o": "OUT_OF_MEMORY", "b": "BOOT_FAIL",
    "d": "DEADLINE", "v": "REVOKED", "?": "UNKNOWN", "!": "gar&bage",
}  # fmt: skip


def play(letters: str, *, requeue: bool = False, step: float = 2.0) -> tuple[str | None, int]:
    """Run the tracker over one state a query; return the final state (None: the job has not ended) and the number of queries.

    ``-``: no source lists the job. ``.``: no response. A letter after ``@``: scontrol or sacct lists it, squeue does not.
    """
    tracker = Tracker(Timing(lost=6, stuck=20, requeue=5), requeue=requeue)
    tracker.add(Tracked("7", "deployment x", "deployment x #1", "", submitted=0.0))
    elsewhere, queries = False, 0
    for letter in letters:
        if letter == "@":
            elsewhere = True
            continue
        queries += 1
        now = step * queries
        if letter == ".":
            tracker.no_response(now)
            continue
        view = None if letter == "-" else Job("7", State.parse(LETTERS[letter]))
        update = tracker.update(now, [view] if view and not elsewhere else [], queried=now)
        for job in update.missing:
            if view:
                tracker.found(now, job, view, update)
            else:
                tracker.not_found(now, job, update)
        if update.ended:
            assert not tracker.jobs
            return update.ended[0].state, queries
        elsewhere = False
    return None, queries


@pytest.mark.parametrize(
    ("states", "end", "queries"),
    [
        ("PRRs", "COMPLETED", 4),
        ("s", "COMPLETED", 1),
        ("PCRGGs", "COMPLETED", 6),
        ("PPx", "CANCELLED", 3),
        *((f"PR{letter}", LETTERS[letter], 3) for letter in "xftnpobdv"),
        ("P@s", "COMPLETED", 2),  # short MinJobAge: only scontrol or sacct lists it
        ("PR@x", "CANCELLED", 3),
        ("PR--R-R--s", "COMPLETED", 10),  # it is listed again: the count of queries restarts
        ("PR----", LOST, 6),
        ("----", LOST, 4),
        ("PR-..........R", None, 0),  # an outage does not count
        ("PR......s", "COMPLETED", 9),
        ("PR-.....---", LOST, 10),
        ("P??!!??!!??", None, 0),
        ("PR?s", "COMPLETED", 4),
        ("P" + "G" * 11, STUCK, 12),
        ("PRPPRs", "COMPLETED", 6),  # requeued by an administrator: the same id, waits again
        ("PRGPRs", "COMPLETED", 6),
    ],
)
def test_states_in_sequence_give_one_end(states: str, end: str | None, queries: int) -> None:
    ended, after = play(states)
    assert ended == end
    assert end is None or after == queries


@pytest.mark.parametrize(
    ("states", "end"),
    [
        ("RpPRs", "COMPLETED"),
        ("RnPRs", "COMPLETED"),
        ("Rpppp", "PREEMPTED"),
        ("Rp", None),
        ("Rnn", None),
        ("Rx", "CANCELLED"),
    ],
)
def test_end_of_a_requeueable_job_must_last(states: str, end: str | None) -> None:
    assert play(states, requeue=True)[0] == end


def test_random_states_without_completed_never_succeed() -> None:
    choice = random.Random(5)
    for _ in range(3000):
        states = "".join(choice.choices("PRG?!-.xfnp@", k=12)).rstrip("@").replace("@-", "-").replace("@.", ".").replace("@@", "@")
        states = states.replace("@@", "@").replace("@-", "-").replace("@.", ".")
        assert play(states)[0] != "COMPLETED", states


def test_job_that_ends_hangs_or_vanishes_is_dropped_soon() -> None:
    """Whatever came before, a bounded number of queries is enough."""
    for before in map("".join, itertools.product("PRG?-.", repeat=3)):
        for tail, at_most in (("-", 5), ("x", 1), ("s", 1), ("G", 11)):
            end, queries = play(before + tail * 12)
            assert end is not None and queries <= 3 + at_most, (before, tail)


def test_double_submission_is_found() -> None:
    tracker = Tracker()
    tracker.add(Tracked("7", "x", "x #1", "", submitted=0.0))
    listed = [
        Job("7", State("RUNNING"), comment="x #1"),
        Job("8", State("PENDING"), comment="x #1"),
        Job("9", State("PENDING"), comment="y"),
    ]
    assert tracker.update(1.0, listed).doubles == ["8"]


def test_job_submitted_after_the_query_is_not_missing() -> None:
    tracker = Tracker()
    tracker.add(Tracked("7", "x", "x #1", "", submitted=5.0))
    assert tracker.update(6.0, [], queried=4.9).missing == []
    assert len(tracker.update(8.0, [], queried=7.0).missing) == 1


def pending(reason: str, state: str = "PENDING") -> list[Job]:
    return [Job("7", State(state), reason=reason)]


def test_reason_to_wait_is_reported_once_and_when_it_changes() -> None:
    tracker = Tracker()
    tracker.add(Tracked("7", "x", "x #1", "", submitted=0.0))
    reported = [
        (1.0, "Resources", False),  # most jobs start at once
        (6.0, "", False),
        (8.0, "Priority", True),
        (10.0, "Priority", False),
        (12.0, "None", False),
        (14.0, "Priority", False),
        (16.0, "Resources", True),
        (18.0, "Priority", False),  # back and forth
        (20.0, "JobHeldUser", True),
        (22.0, "ReqNodeNotAvail, UnavailableNodes:node1", True),
        (24.0, "ReqNodeNotAvail, UnavailableNodes:node[1-2]", False),
        (26.0, "ReqNodeNotAvail, Reserved for maintenance", True),
    ]
    for now, reason, new in reported:
        assert bool(tracker.update(now, pending(reason)).waiting) is new, (now, reason)
    assert tracker.update(702.0, pending("Resources", "RUNNING")).waiting == []


@pytest.mark.parametrize(("age", "interval"), [(0, 2), (10, 2), (20, 2), (50, 5), (100, 10), (150, 15), (86400, 15)])
def test_interval_is_a_tenth_of_the_jobs_time(age: float, interval: float) -> None:
    assert Timing().interval(age) == interval


def queries_a_minute(count: int, begin: float, *, every: float | None = None) -> int:
    """Count the queries in the minute from ``begin`` on, for jobs that all began at 0 or, with ``every``, for short ones in sequence."""
    tracker, now, found, number = Tracker(), 0.0, 0, 0
    for _ in range(count):
        number += 1
        tracker.add(Tracked(str(number), "", str(number), "", submitted=0.0))
    while now < begin + 60:
        now = max(now, tracker.next_query())
        if every and now // every > number - count:
            tracker.jobs.pop(next(iter(tracker.jobs)))
            number += 1
            tracker.add(Tracked(str(number), "", str(number), "", submitted=now))
        tracker.update(
            now,
            [Job(job, State("RUNNING"), elapsed_s=now - tracked.submitted) for job, tracked in tracker.jobs.items()],
        )
        found += begin <= now < begin + 60
    return found


@pytest.mark.parametrize(
    ("count", "begin", "every", "at_most"),
    [
        (1, 0, None, 25),
        (1, 150, None, 5),
        (50, 0, None, 12),
        (50, 60, None, 9),
        (50, 150, None, 5),
        (50, 60, 1.0, 13),
        (1, 60, 5.0, 31),
    ],
)
def test_queries_a_minute_are_bounded(count: int, begin: float, every: float | None, at_most: int) -> None:
    assert 4 <= queries_a_minute(count, begin, every=every) <= at_most


def test_first_query_is_early_and_failures_slow_down() -> None:
    tracker = Tracker()
    assert tracker.next_query() == float("inf")
    tracker.add(Tracked("7", "", "", "", submitted=100.0))
    assert tracker.next_query() == 101.0
    pauses = []
    for now in (101.0, 110.0, 130.0, 160.0, 200.0):
        tracker.no_response(now)
        pauses.append(tracker.next_query() - now)
    assert pauses == [4.0, 8.0, 16.0, 30.0, 30.0]
    tracker.update(240.0, [Job("7", State("RUNNING"), elapsed_s=5.0)])
    assert tracker.next_query() == 242.0


def test_reason_to_wait_is_printed_and_noted_in_journal(tool: MakeTool, tmp_path: Path) -> None:
    said: list[str] = []
    path, tracker = tmp_path / "jobs.jsonl", Tracker(Timing(waits=0))
    tracker.add(Tracked("7", "deployment x", "x #1", "", submitted=time.monotonic()))
    watch = Watch("run", path, tracker, threading.RLock(), Outage(said.append), threading.Event(), said.append)
    for reason in ("None", "Priority", "Priority", "JobHeldUser"):
        tool("squeue", f"echo '7|PENDING|0:00|5:00|N/A|N/A||{reason}|run|x #1|/work'")
        watch.query()
    assert [words.startswith("deployment x (job 7)") for words in said] == [True, True]
    assert "Priority" in said[0] and "scontrol release 7" in said[1]
    assert [entry["reason"] for entry in journal.read(path)] == ["", "Priority", "JobHeldUser"]
