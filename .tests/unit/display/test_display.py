"""The thread that displays the progress of a run, without a live display."""

from __future__ import annotations

import json
import time

import pytest

from servemark.display import display as displaying
from servemark.display.display import Display
from servemark.display.run_state import RunState
from servemark.progress import Progress


@pytest.fixture
def display(tmp_path, monkeypatch):
    monkeypatch.setattr(displaying, "POLL_S", 0.02)
    Progress(tmp_path / "progress.jsonl", "old", "x").say("from an earlier run")
    shown = Display(tmp_path, RunState({"plain": ("p-r1",)}), lambda line: line.get("more", ()))
    shown.start()
    yield shown
    shown.end()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "progress.jsonl"


def test_lines_from_now_on_are_printed_and_the_last_ones_at_the_end(display, path, capfd):
    Progress(path, "new", "plain").say("first")
    time.sleep(0.1)
    Progress(path, "new", "plain").say("last")
    display.end()
    assert [line.split()[-1] for line in capfd.readouterr().err.splitlines()] == ["first", "last"]
    assert not display.is_alive()


def test_line_is_printed_when_it_is_whole(display, path, capfd):
    text = json.dumps({"time": 0, "stage": "s", "subject": "plain", "text": "whole", "log": ""})
    with path.open("a") as half:
        half.write(text[:20])
        half.flush()
        time.sleep(0.1)
        assert capfd.readouterr().err == ""
        half.write(text[20:] + "\n")
    display.end()
    assert "whole" in capfd.readouterr().err


def test_damaged_lines_do_not_end_the_display(display, path, capfd):
    with path.open("a") as damaged:
        damaged.write('{"time": 1, "sta{"time": 2}\n[]\n{}\n')
    Progress(path, "new", "plain").say("still shown")
    display.end()
    assert len(capfd.readouterr().err.splitlines()) == 1


def test_texts_of_the_check_follow_their_line(display, path, capfd):
    progress = Progress(path, "hold_endpoint", "plain")
    progress.say("READY", more=["warning: no way there"])
    progress.say("next")
    display.end()
    texts = [line.split(None, 3)[3] for line in capfd.readouterr().err.splitlines()]
    assert texts == ["READY", "warning: no way there", "next"]


def test_state_of_the_run_is_updated(display, path):
    Progress(path, "measure", "plain").say("p-r1: done", point={"phase": "finished", "name": "p-r1", "verdict": "VALID"})
    display.end()
    assert display._state.finished == {("plain", "p-r1")}
