"""Progress: whole lines in one file, and words a person can follow."""

from __future__ import annotations

import io
import json
import threading
import time

import pytest

from servemark import progress
from servemark.progress import Display, Progress, format_line


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_word_is_one_line_with_its_stage_subject_and_log(tmp_path):
    path = tmp_path / "run" / "progress.jsonl"
    Progress(path, "measure", "plain", "logs/measure.log").say("läuft\nweiter")
    (line,) = lines(path)
    assert line.pop("time") == pytest.approx(time.time(), abs=5)
    assert line == {"stage": "measure", "subject": "plain", "text": "läuft\nweiter", "log": "logs/measure.log"}


def test_without_a_file_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Progress(None, "measure").say("hello")
    assert list(tmp_path.iterdir()) == []


def test_several_writers_never_mix_their_lines(tmp_path):
    path = tmp_path / "progress.jsonl"
    text = "x" * 500
    threads = [threading.Thread(target=lambda n=n: [Progress(path, f"s{n}").say(text) for _ in range(50)]) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(line["stage"] for line in lines(path)) == sorted(f"s{n}" for n in range(4) for _ in range(50))


def test_waiting_is_told_when_the_words_are_new_or_time_has_passed(told):
    told.waiting("waiting for a")
    told.waiting("waiting for a")
    told.waiting("waiting for b")
    told.waiting("waiting for b", every_s=0.0)
    assert [words.split(",")[0] for words in told.words] == ["waiting for a", "waiting for b", "waiting for b"]
    assert all(words.endswith(" s so far") for words in told.words)


@pytest.mark.parametrize(
    ("seconds", "text", "log", "expected"),
    [
        (0, "starting", "a.log", "0:00:00  plain        serve_model          starting"),
        (3725.9, "starting", "", "1:02:05  plain        serve_model          starting"),
        (-3, "early", "", "0:00:00  plain        serve_model          early"),
        (
            61,
            "waiting, 5 s so far",
            "a.log",
            "0:01:01  plain        serve_model          waiting, 5 s so far  [log: a.log]",
        ),
        (61, "waiting, 5 s so far", "", "0:01:01  plain        serve_model          waiting, 5 s so far"),
    ],
)
def test_a_shown_line_says_when_what_and_where_to_look(seconds, text, log, expected):
    line = {"time": 1000.0 + seconds, "subject": "plain", "stage": "serve_model", "text": text, "log": log}
    assert format_line(line, 1000.0) == expected


@pytest.fixture
def display(tmp_path, monkeypatch):
    monkeypatch.setattr(progress, "POLL_S", 0.02)
    path = tmp_path / "progress.jsonl"
    Progress(path, "old", "x").say("from an earlier run")
    stream = io.StringIO()
    shown = Display(path, stream)
    shown.start()
    yield path, stream, shown
    shown.end()


def test_the_display_shows_what_comes_from_now_on(display, wait_for):
    path, stream, _ = display
    Progress(path, "new", "plain").say("now")
    wait_for(lambda: "now" in stream.getvalue())
    assert "from an earlier run" not in stream.getvalue()


def test_the_display_waits_for_the_end_of_a_line(display, wait_for):
    path, stream, shown = display
    text = json.dumps({"time": 0, "stage": "s", "subject": "plain", "text": "whole", "log": ""})
    with path.open("a") as half:
        half.write(text[:20])
        half.flush()
        time.sleep(0.1)
        assert stream.getvalue() == ""
        half.write(text[20:] + "\n")
    wait_for(lambda: "whole" in stream.getvalue())
    shown.end()
    assert not shown.is_alive()


def test_a_damaged_line_does_not_end_the_display(display, wait_for):
    path, stream, _ = display
    with path.open("a") as damaged:
        damaged.write('{"time": 1, "sta{"time": 2}\n[]\n')
    Progress(path, "new", "plain").say("still shown")
    wait_for(lambda: "still shown" in stream.getvalue())
    assert len(stream.getvalue().splitlines()) == 1


def test_the_end_shows_what_is_left(tmp_path):
    path, stream = tmp_path / "later.jsonl", io.StringIO()
    shown = Display(path, stream)
    shown.start()
    Progress(path, "s", "plain").say("the last word")
    shown.end()
    assert "the last word" in stream.getvalue()
