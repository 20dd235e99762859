"""The rows of the live display: what fits the terminal, in what order."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from servemark.display.live_rows import WIDTH, render
from servemark.display.run_state import Row, RunState

NOW = 1000.0


def drawn(state, columns=100, lines=40):
    console = Console(file=io.StringIO(), width=columns, height=lines)
    console.print(render(state, "demo", 900.0, NOW, (columns, lines)))
    return console.file.getvalue().splitlines()


def state(*rows, **more):
    made = RunState({"a": ("chat-c1-r1", "chat-c8-r1"), "b": ("chat-c1-r1",)}, **more)
    made.rows = {row.subject: row for row in rows}
    return made


def row(subject="a", stage="await_ready", text="loading weights", heard=NOW, **more):
    return Row(subject, stage, text, 990.0, heard, **more)


MEASURING = {"phase": "measuring", "name": "chat-c8-r1", "finished": 12, "requests": 64, "tokens_per_s": 1890.4, "ttft_ms": 46.2}


def test_headline_counts_points_and_time():
    text = drawn(state(finished={("a", "chat-c1-r1")}, from_ledger=1))[0]
    assert all(part in text for part in ("demo", "1 of 3", "1 from the ledger", "0:01:40"))


def test_measuring_row_has_point_requests_rate_and_ttft():
    text = drawn(state(row(stage="measure", point=MEASURING)))[1]
    assert all(part in text for part in ("a ", "measure", "chat-c8-r1", "12 of 64", "1,890", "46 ms", "0:00:10"))


@pytest.mark.parametrize(
    ("phase", "parts"),
    [({"phase": "starting the client"}, ("client",)), ({"phase": "warm-up", "finished": 2, "warmups": 8}, ("warm-up", "2 of 8"))],
)
def test_time_before_the_load_is_named(phase, parts):
    text = drawn(state(row(stage="measure", point={"name": "chat-c8-r1", "requests": 64, **phase})))[1]
    assert all(part in text for part in (*parts, "chat-c8-r1")) and "of 64" not in text


def test_measuring_deployments_come_first_and_queued_ones_last():
    rows = (row("a", "queue"), row("b", "await_ready"), row("c", "measure", point=MEASURING))
    assert [text.split()[0] for text in drawn(state(*rows))[1:]] == ["c", "b", "a"]


def test_silent_stage_is_marked_but_not_a_queued_one():
    texts = drawn(state(row("a", heard=NOW - 75), row("b", "queue", heard=NOW - 75)))[1:]
    assert ["75 s" in text for text in texts] == [True, False]


@pytest.mark.parametrize("columns", [40, 80, 120, 300])
@pytest.mark.parametrize("lines", [6, 24, 60])
def test_rows_fit_the_terminal_and_hidden_ones_are_counted(columns, lines):
    made = state(*(row(f"deployment-{number}", "plan_deployment", "x" * 200) for number in range(50)))
    texts = drawn(made, columns, lines)
    assert max(map(len, texts)) <= min(columns, WIDTH)
    assert len(texts) <= max(3, lines // 2)
    assert str(50 - (len(texts) - 2)) in texts[-1]
