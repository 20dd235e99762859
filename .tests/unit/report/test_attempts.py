"""Every start of a deployment with how it ended."""

from __future__ import annotations

import pytest

from builders import report_data
from builders import report_data_parts as parts
from servemark.records import DaemonState, Failure
from servemark.report import attempts_section
from servemark.report.gaps import attempt_rows, gaps, made_good
from servemark.report.gather import RunRecords
from servemark.supervisor import KeeperState

FAILURE = Failure(stage="await_ready", reason="server_exited", detail="It ended.", quote=("RuntimeError: boom",))
OUTSIDE = FAILURE.model_copy(update={"reason": "out_of_time"})


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "deployments" / "plain"


def start(folder, number=1, why="stop_requested", failure=None, nodes=("node02", "node01"), surveyed=()):
    attempt = folder / "attempts" / f"{number:03d}"
    (attempt / "daemons").mkdir(parents=True)
    state = KeeperState(state="ended", identity="7:1@x", deployment="plain", why=why, ended_at="2026-03-04T11:00:00+00:00")
    (attempt / "keeper.json").write_text(state.model_dump_json())
    for index, node in enumerate(nodes):
        began = f"2026-03-04T10:0{9 - index}:00+00:00"
        daemon = DaemonState(name=f"d{index}", argv=(), log="x", node=node, started_at=began)
        (attempt / "daemons" / f"d{index}.json").write_text(daemon.model_dump_json())
    if failure:
        (attempt / "failure.json").write_text(failure.model_dump_json())
    for node in surveyed:
        (attempt / "survey" / "look").mkdir(parents=True, exist_ok=True)
        (attempt / "survey" / "look" / f"{node}.json").write_text("{}")
    return attempt


@pytest.mark.parametrize(
    ("why", "failure", "outcome", "named"),
    [
        ("stop_requested", None, "ended as planned", ""),
        ("stop_requested", FAILURE, "failed", "await_ready: server_exited"),
        ("out_of_time", OUTSIDE, "broken off", "await_ready: out_of_time"),
        ("lifeline_ended", None, "broken off", ""),
        ("daemon_ended:server", None, "failed", "server"),
        ("stage_killed", None, "broken off", "stage_killed"),
        (None, None, "not known", "ended"),
    ],
)
def test_how_an_attempt_ended(folder, why, failure, outcome, named):
    start(folder, why=why, failure=failure)
    (found,) = attempts_section.read(folder)
    assert (found.deployment, found.number, found.outcome) == ("plain", "001", outcome)
    assert named in found.how and found.how
    assert found.failure == failure


def test_when_and_where_are_told_by_what_was_started_or_looked_at(folder):
    start(folder)
    start(folder, 2, surveyed=("node05", "node04"))
    start(folder, 3, nodes=())
    first, second, third = attempts_section.read(folder)
    assert (first.started_at, first.ended_at) == ("2026-03-04T10:08:00+00:00", "2026-03-04T11:00:00+00:00")
    assert first.nodes == ("node01", "node02"), "in the order in which they were started"
    assert second.nodes == ("node04", "node05")
    assert (third.started_at, third.nodes) == (None, ())


@pytest.mark.parametrize("text", ["{", "[]", "{}", "[" * 100_000])
def test_an_attempt_that_cannot_be_read_says_so_and_hides_no_other(folder, text):
    (start(folder) / "keeper.json").write_text(text)
    start(folder, 2)
    first, second = attempts_section.read(folder)
    assert (first.outcome, second.outcome) == ("not known", "ended as planned") and "Error" in first.how


def test_a_keeper_without_a_word_and_a_deployment_without_attempts(folder):
    assert attempts_section.read(folder) == []
    (start(folder) / "keeper.json").unlink()
    assert attempts_section.read(folder)[0].outcome == "not known"


def test_measurements_are_counted_in_the_attempt_that_made_them():
    made = {"attempt": "results/demo/deployments/plain/attempts/002", "client_argv": ("vllm",)}
    items = [report_data.measurement(**made), report_data.measurement(concurrency=4, **made)]
    doubtful = items[0].model_copy(update={"verdict": "SUSPECT"})
    rejected = [
        report_data.invalid(**made),
        report_data.invalid(**made, concurrency=1).model_copy(update={"client_argv": ()}),
    ]
    attempts = [parts.attempt("plain"), parts.attempt("plain", 2)]
    rows = attempt_rows(RunRecords(attempts=attempts, measurements=[*items, doubtful], rejected=rejected), [])
    assert [row["counts"] for row in rows] == [{}, {"VALID": 2, "SUSPECT": 1, "INVALID": 1}]


def test_a_failure_is_linked_to_where_the_page_tells_of_it():
    data = report_data.troubled()
    found = gaps(data)
    later = made_good(data, found)
    assert [(gap.anchor, gap.deployment) for gap in found] == [("gap-1", "plain"), ("gap-2", "tp4")]
    assert [(gap.anchor, gap.deployment, gap.attempt) for gap in later] == [("attempt-1", "ray-tp2", "001")]
    rows = attempt_rows(data, [*found, *later])
    assert [row["anchor"] for row in rows] == [None, "attempt-1", None, "gap-2", None]
