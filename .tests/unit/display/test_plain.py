"""Progress as plain lines: every result, few lines about waiting."""

from __future__ import annotations

import pytest

from servemark.display.plain import EVERY_S, REPEAT_S, PlainLines, format_line


def line(seconds, text="starting", log="a.log", **more):
    return {"time": 1000.0 + seconds, "subject": "plain", "stage": "serve_model", "text": text, "log": log, **more}


@pytest.mark.parametrize(
    ("seconds", "more", "expected"),
    [
        (0, {}, "0:00:00  plain        serve_model          starting"),
        (3725.9, {"log": ""}, "1:02:05  plain        serve_model          starting"),
        (-3, {}, "0:00:00  plain        serve_model          starting"),
        (61, {"waiting": 5.2}, "0:01:01  plain        serve_model          starting, 5 s  [log: a.log]"),
        (61, {"waiting": 5.2, "log": ""}, "0:01:01  plain        serve_model          starting, 5 s"),
    ],
)
def test_line_golden(seconds, more, expected):
    assert format_line(line(seconds, **more), 1000.0) == expected


def printed(lines):
    plain = PlainLines(1000.0)
    return [one["time"] - 1000.0 for one in lines if plain.line(one)]


def test_every_result_is_printed():
    assert printed(line(seconds) for seconds in range(5)) == [0, 1, 2, 3, 4]


def test_end_of_a_stage_is_not_printed():
    assert printed([line(0, text="", ended=True)]) == []


def test_one_waiting_line_of_a_subject_in_half_a_minute():
    moments = printed(line(seconds, text=f"{seconds} requests", waiting=1.0) for seconds in range(0, 100, 5))
    assert moments == [0, 30, 60, 90] and EVERY_S == 30.0


def test_same_waiting_line_is_repeated_after_minutes_only():
    assert printed(line(seconds, waiting=1.0) for seconds in range(0, 700, 10)) == [0, 300, 600] and REPEAT_S == 300.0


def test_subjects_do_not_delay_each_other():
    assert printed([line(0, waiting=1.0), line(1, waiting=1.0) | {"subject": "other"}]) == [0, 1]
