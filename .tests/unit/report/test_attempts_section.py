"""Every start of a deployment with how it ended, and what its log says around the failure."""

from __future__ import annotations

import json

import pytest

from builders import report_data
from builders import report_data_parts as parts
from servemark.records import DaemonState, Failure
from servemark.report import attempts_section, excerpts
from servemark.report.gaps import gaps, made_good
from servemark.security.redaction import Redactor
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
    ("why", "failure", "outcome", "how"),
    [
        ("stop_requested", None, "ended as planned", "stopped after its last point"),
        ("stop_requested", FAILURE, "failed", "await_ready: server_exited"),
        ("out_of_time", OUTSIDE, "broken off", "await_ready: out_of_time"),
        ("lifeline_ended", None, "broken off", "the run ended while it lived: interrupted, killed or lost"),
        ("daemon_ended:server", None, "failed", "server ended by itself"),
        ("stage_killed", None, "broken off", "stage_killed"),
        (None, None, "not known", "its keeper last said: ended"),
    ],
)
def test_how_an_attempt_ended(folder, why, failure, outcome, how):
    start(folder, why=why, failure=failure)
    (found,) = attempts_section.read(folder)
    assert (found.deployment, found.number, found.outcome, found.how) == ("plain", "001", outcome, how)
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
    assert first.outcome == "not known" and "cannot be read" in first.how
    assert second.outcome == "ended as planned"


def test_a_keeper_without_a_word_and_a_deployment_without_attempts(folder):
    assert attempts_section.read(folder) == []
    (start(folder) / "keeper.json").unlink()
    assert attempts_section.read(folder)[0].how == "its keeper said nothing"


def test_measurements_are_counted_in_the_attempt_that_made_them():
    made = {"attempt": "results/demo/deployments/plain/attempts/002", "client_argv": ("vllm",)}
    items = [report_data.measurement(**made), report_data.measurement(concurrency=4, **made)]
    doubtful = items[0].model_copy(update={"verdict": "SUSPECT"})
    rejected = [
        report_data.invalid(**made),
        report_data.invalid(**made, concurrency=1).model_copy(update={"client_argv": ()}),
    ]
    rows = attempts_section.rows([parts.attempt("plain"), parts.attempt("plain", 2)], [*items, doubtful], rejected, [])
    assert [row["counts"] for row in rows] == [{}, {"VALID": 2, "SUSPECT": 1, "INVALID": 1}]


def test_a_failure_is_linked_to_where_the_page_tells_of_it():
    data = report_data.troubled()
    found = gaps(data)
    later = made_good(data, found)
    assert [(gap.anchor, gap.deployment) for gap in found] == [("gap-1", "plain"), ("gap-2", "tp4")]
    assert [(gap.anchor, gap.deployment, gap.attempt) for gap in later] == [("attempt-1", "ray-tp2", "001")]
    rows = attempts_section.rows(data.attempts, data.measurements, data.rejected, [*found, *later])
    assert [row["anchor"] for row in rows] == [None, "attempt-1", None, "gap-2", None]


LOG = [f"INFO line {number}" for number in range(100)]


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "results" / "demo" / "deployments" / "plain" / "attempts" / "001" / "server.log"
    path.parent.mkdir(parents=True)

    def write(lines):
        path.write_text("\n".join(lines) + "\n")
        return path

    return write


def read(path, *quote):
    found = excerpts.read(path, quote, Redactor())
    return found.note, [text for text, _ in found.lines], [text for text, quoted in found.lines if quoted]


def test_the_first_place_of_each_quoted_line_comes_with_its_neighbours(log):
    lines = [*LOG[:50], "\x1b[31mRuntimeError: boom\x1b[0m", *LOG[50:], "RuntimeError: boom", "ValueError: end"]
    note, shown, quoted = read(log(lines), "RuntimeError: boom", "ValueError: end", "never said")
    assert note == "The quoted lines in server.log with what is around them:"
    assert quoted == ["RuntimeError: boom", "ValueError: end"]
    assert shown == [
        "[44 lines left out]", *LOG[44:50], "RuntimeError: boom", *LOG[50:56], "[39 lines left out]", *LOG[95:],
        "RuntimeError: boom", "ValueError: end",
    ]  # fmt: skip


def test_a_log_without_the_quoted_lines_is_shown_from_its_end(log):
    note, shown, quoted = read(log(LOG), "RuntimeError: boom")
    assert note == "The last lines of server.log:" and shown == LOG[-excerpts.LAST_LINES :] and quoted == []


def test_an_excerpt_is_bounded(log):
    quote = [f"ERROR {number}" for number in range(40)]
    lines = [line for one in quote for line in (*LOG[:20], one)]
    lines[10] = "x" * 5000
    _, shown, _ = read(log(lines), *quote)
    assert len(shown) <= excerpts.MOST_LINES + 2 * excerpts.CONTEXT + 2
    assert max(map(len, shown)) <= excerpts.LINE_LENGTH


def test_secrets_are_taken_out(log):
    _, shown, _ = read(log(["Authorization: Bearer abcdef0123456789abcdef", "RuntimeError: boom"]), "RuntimeError: boom")
    assert shown == ["Authorization: [REDACTED: bearer token]", "RuntimeError: boom"]


def test_a_log_is_found_wherever_the_runs_folder_lies_and_nowhere_else(log, tmp_path):
    path, run = log(LOG), tmp_path / "results" / "demo"
    for said in (
        "results/demo/deployments/plain/attempts/001/server.log",
        "/a/results/demo/deployments/plain/attempts/001/server.log",
    ):
        assert excerpts.locate(said, run) == path
    for said in (
        "results/other/x.log",
        "results/demo/none.log",
        "/etc/passwd",
        "results/demo/../../x",
        "results/demo",
        "",
    ):
        assert excerpts.locate(said, run) is None


def test_every_failure_that_names_a_log_has_an_excerpt_or_a_reason_why_not(log, tmp_path):
    named = FAILURE.model_copy(update={"log": "results/demo/deployments/plain/attempts/001/server.log"})
    gone = named.model_copy(update={"log": "results/demo/gone.log"})
    log(["RuntimeError: boom"])
    found = excerpts.of_failures([FAILURE, named, named, gone], tmp_path / "results" / "demo")
    assert len(found) == 2
    assert found[excerpts.key(named)].lines == (("RuntimeError: boom", True),)
    assert found[excerpts.key(gone)].note == "The log is not in the run's folder." and not found[excerpts.key(gone)].lines
    json.dumps([item.lines for item in found.values()])
