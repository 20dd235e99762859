"""Attempts: every start of a deployment, and how it ended."""

from __future__ import annotations

import pytest

from builders import report_data
from builders import report_data_parts as parts
from servemark.records import DaemonState, Failure
from servemark.report import attempts
from servemark.report.gaps import attempt_rows, gaps, made_good
from servemark.report.gather import RunRecords
from servemark.supervisor import SupervisorState

FAILURE = Failure(stage="await_ready", reason="server_exited", detail="It ended.", quote=("RuntimeError: boom",))
OUTSIDE = FAILURE.model_copy(update={"reason": "out_of_time"})


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "deployments" / "plain"


def start(folder, number=1, why="stop_requested", failure=None, nodes=("node02", "node01"), surveyed=()):
    attempt = folder / "attempts" / f"{number:03d}"
    (attempt / "daemons").mkdir(parents=True)
    state = SupervisorState(state="ended", identity="7:1@x", deployment="plain", why=why, ended_at="2026-03-04T11:00:00+00:00")
    (attempt / "supervisor.json").write_text(state.model_dump_json())
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
        ("out_of_time", OUTSIDE, "interrupted", "await_ready: out_of_time"),
        ("lifeline_ended", None, "interrupted", ""),
        ("daemon_ended:server", None, "failed", "server"),
        ("stage_killed", None, "interrupted", "stage_killed"),
        (None, None, "unknown", "ended"),
    ],
)
def test_attempt_has_outcome(folder, why, failure, outcome, named):
    start(folder, why=why, failure=failure)
    (found,) = attempts.read(folder)
    assert (found.deployment, found.number, found.outcome) == ("plain", "001", outcome)
    assert named in found.how and found.how
    assert found.failure == failure


def test_attempt_times_and_nodes_come_from_processes_or_survey(folder):
    start(folder)
    start(folder, 2, surveyed=("node05", "node04"))
    start(folder, 3, nodes=())
    first, second, third = attempts.read(folder)
    assert (first.started_at, first.ended_at) == ("2026-03-04T10:08:00+00:00", "2026-03-04T11:00:00+00:00")
    assert first.nodes == ("node01", "node02"), "in the order of their start"
    assert second.nodes == ("node04", "node05")
    assert (third.started_at, third.nodes) == (None, ())


@pytest.mark.parametrize("text", ["{", "[]", "{}", "[" * 100_000])
def test_unreadable_attempt_does_not_hide_others(folder, text):
    (start(folder) / "supervisor.json").write_text(text)
    start(folder, 2)
    first, second = attempts.read(folder)
    assert (first.outcome, second.outcome) == ("unknown", "ended as planned") and "Error" in first.how


def test_attempt_without_supervisor_state_is_unknown(folder):
    assert attempts.read(folder) == []
    (start(folder) / "supervisor.json").unlink()
    assert attempts.read(folder)[0].outcome == "unknown"


def test_measurements_are_counted_by_attempt():
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


def test_measurement_of_other_machine_counts_for_no_attempt():
    made = {"attempt": "results/demo/deployments/plain/attempts/001", "client_argv": ("vllm",)}
    items = [report_data.measurement(**made, concurrency=load, attempt_id=name) for load, name in ((1, "here"), (2, "there"), (4, None))]
    (row,) = attempt_rows(RunRecords(attempts=[parts.attempt("plain", id="here")], measurements=items), [])
    assert row["counts"] == {"VALID": 1}


def test_attempt_has_id_of_its_supervisor(folder):
    path = start(folder) / "supervisor.json"
    assert attempts.read(folder)[0].id is None
    path.write_text(SupervisorState.model_validate_json(path.read_text()).model_copy(update={"attempt_id": "here"}).model_dump_json())
    assert attempts.read(folder)[0].id == "here"


def test_failure_of_attempt_links_to_its_anchor():
    data = report_data.troubled()
    found = gaps(data)
    later = made_good(data, found)
    assert [(gap.anchor, gap.deployment) for gap in found] == [("gap-1", "plain"), ("gap-2", "tp4")]
    assert [(gap.anchor, gap.deployment, gap.attempt) for gap in later] == [("attempt-1", "ray-tp2", "001")]
    rows = attempt_rows(data, [*found, *later])
    assert [row["anchor"] for row in rows] == [None, "attempt-1", None, "gap-2", None]
