"""Lines of progress: whole, in one file, with what the display needs."""

from __future__ import annotations

import json
import threading
import time

import pytest

from servemark.progress import Progress


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_line_has_stage_subject_text_and_log(tmp_path):
    path = tmp_path / "run" / "progress.jsonl"
    Progress(path, "measure", "plain", "logs/measure.log").say("läuft\nweiter", point={"name": "p"})
    (line,) = lines(path)
    assert line.pop("time") == pytest.approx(time.time(), abs=60)
    assert line == {"stage": "measure", "subject": "plain", "text": "läuft\nweiter", "log": "logs/measure.log", "point": {"name": "p"}}


def test_nothing_is_written_without_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Progress(None, "measure").say("hello")
    assert list(tmp_path.iterdir()) == []


def test_lines_of_several_writers_stay_whole(tmp_path):
    path = tmp_path / "progress.jsonl"
    text = "x" * 500
    threads = [threading.Thread(target=lambda n=n: [Progress(path, f"s{n}").say(text) for _ in range(50)]) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(line["stage"] for line in lines(path)) == sorted(f"s{n}" for n in range(4) for _ in range(50))


def test_waiting_is_written_when_text_changes_or_time_has_passed(told):
    told.waiting("waiting for a")
    told.waiting("waiting for a")
    told.waiting("waiting for b")
    told.waiting("waiting for b", every_s=0.0)
    assert told.words == ["waiting for a", "waiting for b", "waiting for b"]
    assert all(line["waiting"] >= 0 for line in told.lines)


def test_numbers_in_a_waiting_text_do_not_make_it_new(told):
    for number in range(5):
        told.waiting(f"{number} requests", about="requests")
    assert told.words == ["0 requests"]


def test_end_of_a_stage_has_no_text(told):
    told.end()
    assert [(line["text"], line["ended"]) for line in told.lines] == [("", True)]
