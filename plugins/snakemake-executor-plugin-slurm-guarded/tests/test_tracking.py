"""The state machine over Slurm's output, and how often it asks."""

from __future__ import annotations

import itertools
import random

import pytest

from snakemake_executor_plugin_slurm_guarded.job_end import LOST, STUCK
from snakemake_executor_plugin_slurm_guarded.queries import Job
from snakemake_executor_plugin_slurm_guarded.states import State
from snakemake_executor_plugin_slurm_guarded.tracking import Bounds, Pace, Tracked, Tracker

# One letter a look, two seconds apart: what squeue shows of the job, or what others say when it does not list it.
LETTERS = {
    "P": "PENDING", "C": "CONFIGURING", "R": "RUNNING", "G": "COMPLETING", "s": "COMPLETED", "x": "CANCELLED",
    "f": "FAILED", "t": "TIMEOUT", "n": "NODE_FAIL", "p": "PREEMPTED", "o": "OUT_OF_MEMORY", "b": "BOOT_FAIL",
    "d": "DEADLINE", "v": "REVOKED", "?": "UNKNOWN", "!": "gar&bage",
}  # fmt: skip


def play(letters: str, *, requeue: bool = False, step: float = 2.0) -> tuple[str | None, int]:
    """Play a story: the word it ends with (None: it goes on), and the number of looks until then.

    ``-``: nobody knows the job; ``.``: no answer; a letter after ``@``: squeue does not list it, scontrol or sacct does.
    """
    tracker = Tracker(Pace(), Bounds(lost_s=6, lost_looks=3, stuck_s=20, requeue_s=5), requeue=requeue)
    tracker.add(Tracked("7", "deployment x", "deployment x #1", "", submitted=0.0))
    elsewhere, looks = False, 0
    for letter in letters:
        if letter == "@":
            elsewhere = True
            continue
        looks += 1
        now = step * looks
        if letter == ".":
            tracker.no_answer(now)
            continue
        view = None if letter == "-" else Job("7", State.parse(LETTERS[letter]))
        look = tracker.see(now, [view] if view and not elsewhere else [], asked=now)
        for job in look.missing:
            if view:
                tracker.found(now, job, view, look)
            else:
                tracker.nobody_knows(now, job, look)
        if look.ended:
            assert not tracker.jobs
            return look.ended[0].state, looks
        elsewhere = False
    return None, looks


@pytest.mark.parametrize(
    ("story", "word", "looks"),
    [
        ("PRRs", "COMPLETED", 4),
        ("s", "COMPLETED", 1),
        ("PCRGGs", "COMPLETED", 6),
        ("PPx", "CANCELLED", 3),
        *((f"PR{letter}", LETTERS[letter], 3) for letter in "xftnpobdv"),
        ("P@s", "COMPLETED", 2),  # short MinJobAge: only scontrol or sacct knows it
        ("PR@x", "CANCELLED", 3),
        ("PR--R-R--s", "COMPLETED", 10),  # it is known again: the count of looks begins anew
        ("PR----", LOST, 6),
        ("----", LOST, 4),
        ("PR-..........R", None, 0),  # an outage is no reason to give up
        ("PR......s", "COMPLETED", 9),
        ("PR-.....---", LOST, 10),
        ("P??!!??!!??", None, 0),
        ("PR?s", "COMPLETED", 4),
        ("P" + "G" * 11, STUCK, 12),
        ("PRPPRs", "COMPLETED", 6),  # requeued by an administrator: the same id, waits again
        ("PRGPRs", "COMPLETED", 6),
    ],
)
def test_stories(story: str, word: str | None, looks: int) -> None:
    ended, after = play(story)
    assert ended == word
    assert word is None or after == looks


@pytest.mark.parametrize(
    ("story", "word"),
    [
        ("RpPRs", "COMPLETED"),
        ("RnPRs", "COMPLETED"),
        ("Rpppp", "PREEMPTED"),
        ("Rp", None),
        ("Rnn", None),
        ("Rx", "CANCELLED"),
    ],
)
def test_where_slurm_requeues_an_end_must_last(story: str, word: str | None) -> None:
    assert play(story, requeue=True)[0] == word


def test_no_story_ends_in_success_unless_slurm_says_completed() -> None:
    choice = random.Random(5)
    for _ in range(3000):
        story = "".join(choice.choices("PRG?!-.xfnp@", k=12)).rstrip("@").replace("@-", "-").replace("@.", ".").replace("@@", "@")
        story = story.replace("@@", "@").replace("@-", "-").replace("@.", ".")
        assert play(story)[0] != "COMPLETED", story


def test_every_story_that_stops_being_told_ends() -> None:
    """Whatever came before: once nobody knows the job, or it ends, or hangs, there is an end within a bounded number of looks."""
    for before in map("".join, itertools.product("PRG?-.", repeat=3)):
        for tail, at_most in (("-", 5), ("x", 1), ("s", 1), ("G", 11)):
            word, looks = play(before + tail * 12)
            assert word is not None and looks <= 3 + at_most, (before, tail)


def test_a_double_submission_is_found() -> None:
    tracker = Tracker()
    tracker.add(Tracked("7", "x", "x #1", "", submitted=0.0))
    listed = [
        Job("7", State("RUNNING"), comment="x #1"),
        Job("8", State("PENDING"), comment="x #1"),
        Job("9", State("PENDING"), comment="y"),
    ]
    assert tracker.see(1.0, listed).doubles == ["8"]


def test_a_job_submitted_after_the_question_is_not_missing() -> None:
    tracker = Tracker()
    tracker.add(Tracked("7", "x", "x #1", "", submitted=5.0))
    assert tracker.see(6.0, [], asked=4.9).missing == []
    assert len(tracker.see(8.0, [], asked=7.0).missing) == 1


def pending(reason: str, state: str = "PENDING") -> list[Job]:
    return [Job("7", State(state), reason=reason)]


def test_why_a_job_waits_is_told_once_and_when_it_changes() -> None:
    tracker = Tracker()
    tracker.add(Tracked("7", "x", "x #1", "", submitted=0.0))
    story = [
        (1.0, "Resources", False),  # most jobs start at once
        (6.0, "", False),
        (8.0, "Priority", True),
        (10.0, "Priority", False),
        (12.0, "None", False),
        (14.0, "Priority", False),
        (16.0, "Resources", True),
        (18.0, "Priority", False),  # to and fro
        (20.0, "JobHeldUser", True),
        (22.0, "ReqNodeNotAvail, UnavailableNodes:node1", True),
        (24.0, "ReqNodeNotAvail, UnavailableNodes:node[1-2]", False),
        (26.0, "ReqNodeNotAvail, Reserved for maintenance", True),
    ]
    for now, reason, told in story:
        assert bool(tracker.see(now, pending(reason)).waiting) is told, (now, reason)
    assert tracker.see(702.0, pending("Resources", "RUNNING")).waiting == []


@pytest.mark.parametrize(("age", "interval"), [(0, 2), (10, 2), (20, 2), (50, 5), (100, 10), (150, 15), (86400, 15)])
def test_interval_is_a_tenth_of_the_jobs_time(age: float, interval: float) -> None:
    assert Pace().interval(age) == interval


def looks_a_minute(count: int, begin: float, *, every: float | None = None) -> int:
    """Looks in the minute from ``begin`` on; jobs that all began at 0, or short ones that follow each other ``every`` seconds."""
    tracker, now, seen, number = Tracker(), 0.0, 0, 0
    for _ in range(count):
        number += 1
        tracker.add(Tracked(str(number), "", str(number), "", submitted=0.0))
    while now < begin + 60:
        now = max(now, tracker.next_look())
        if every and now // every > number - count:
            tracker.jobs.pop(next(iter(tracker.jobs)))
            number += 1
            tracker.add(Tracked(str(number), "", str(number), "", submitted=now))
        tracker.see(
            now,
            [Job(job, State("RUNNING"), elapsed_s=now - tracked.submitted) for job, tracked in tracker.jobs.items()],
        )
        seen += begin <= now < begin + 60
    return seen


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
def test_questions_a_minute_are_bounded(count: int, begin: float, every: float | None, at_most: int) -> None:
    assert 4 <= looks_a_minute(count, begin, every=every) <= at_most


def test_the_first_look_is_early_and_no_answer_slows_down() -> None:
    tracker = Tracker()
    assert tracker.next_look() == float("inf")
    tracker.add(Tracked("7", "", "", "", submitted=100.0))
    assert tracker.next_look() == 101.0
    pauses = []
    for now in (101.0, 110.0, 130.0, 160.0, 200.0):
        tracker.no_answer(now)
        pauses.append(tracker.next_look() - now)
    assert pauses == [4.0, 8.0, 16.0, 30.0, 30.0]
    tracker.see(240.0, [Job("7", State("RUNNING"), elapsed_s=5.0)])
    assert tracker.next_look() == 242.0
