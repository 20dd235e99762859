"""Quoted errors of a failure: complete, chained and torn tracebacks, in a bounded window of the log."""

from __future__ import annotations

import pytest

from servemark.diagnosis import diagnose, root_error
from servemark.diagnosis.text import LONGEST_LINE, TORN_RANGE, window

STAMP = "11-20 12:00:00 [core.py:1]"


def test_root_error_is_the_first_traceback_with_its_chain():
    log = """\
Exception ignored in: <function X.__del__ at 0x1>
Traceback (most recent call last):
  File "x.py", line 1
ImportError: sys.meta_path is None
(EngineCore pid=1) Traceback (most recent call last):
(EngineCore pid=1)   File "a.py", line 1, in f
(EngineCore pid=1) pydantic_core.ValidationError: 1 validation error for ModelConfig
(EngineCore pid=1)   Value error, unsupported quantization [type=value_error]
(EngineCore pid=1)
(EngineCore pid=1) The above exception was the direct cause of the following exception:
(EngineCore pid=1)
(APIServer pid=2) Traceback (most recent call last):
(APIServer pid=2)   File "c.py", line 1, in g
(APIServer pid=2) RuntimeError: consequence
(EngineCore pid=1) Traceback (most recent call last):
(EngineCore pid=1)   File "b.py", line 1, in f
(EngineCore pid=1) RuntimeError: cannot use this model
(EngineCore pid=1) Traceback (most recent call last):
(EngineCore pid=1)   File "d.py", line 1, in f
(EngineCore pid=1) RuntimeError: unchained
"""
    assert diagnose(log) is None
    lines = log.splitlines()
    assert root_error(log) == (lines[6], lines[7], lines[16])


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        ("usage: vllm serve [options]\nvllm serve: error: unrecognized arguments: --foo\n",
         ("vllm serve: error: unrecognized arguments: --foo",)),
        (f"INFO {STAMP} a\n(A pid=1) ERROR {STAMP} it broke\n(A pid=1) ERROR {STAMP}   in detail\nINFO {STAMP} b\n",
         (f"(A pid=1) ERROR {STAMP} it broke", f"(A pid=1) ERROR {STAMP}   in detail")),
        ("1\n2\n3\n\n4\n5\n6\n", ("2", "3", "4", "5", "6")),
        ("", ()),
    ],
)  # fmt: skip
def test_root_error_without_a_traceback(log, expected):
    assert root_error(log) == expected


A, B = "(A pid=1) ", "(B pid=2) "
RECORD = f"ERROR {STAMP} "
ANNOUNCED, BEGUN = f"{RECORD}WorkerProc hit an exception.", f"{RECORD}Traceback (most recent call last):"
PLACE, SOURCE = f'{RECORD}  File "a.py", line 1, in f', f"{RECORD}    assert fits"


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        # A message is enough; without one, the line that raised it follows, whatever its prefix.
        ([A + ANNOUNCED, A + BEGUN, A + B + PLACE, SOURCE, B + A + RECORD + "a.b.SomeError: no room"], (0, 4)),
        ([A + ANNOUNCED, A + BEGUN, A + B + PLACE, B + SOURCE, RECORD + "    ^^^", B + RECORD + "AssertionError"], (0, 2, 3, 5)),
        ([A + ANNOUNCED, A + BEGUN, PLACE, RECORD + "    wait()", B + RECORD + "queue.Empty"], (0, 4)),
        ([SOURCE, A + ANNOUNCED, A + BEGUN, PLACE, B + RECORD + "AssertionError"], (1, 4)),
        # The second announcement has the first one's prefix and ends no traceback.
        ([A + ANNOUNCED, A + BEGUN, A + ANNOUNCED, PLACE, SOURCE, B + RECORD + "AssertionError"], (0, 3, 4, 5)),
        ([A + ANNOUNCED, A + BEGUN, A + ANNOUNCED, A + PLACE, A + SOURCE, A + RECORD + "AssertionError"], (0, 3, 4, 5)),
        # The engine's own traceback comes later and is complete.
        (
            [A + ANNOUNCED, A + BEGUN, B + A + RECORD + "SomeError: no room", A + "Traceback (most recent call last):", A + "OSError: y"],
            (0, 2),
        ),
        # The announced traceback, or an earlier one, is complete.
        ([A + ANNOUNCED, A + BEGUN, B + RECORD + "SomeError: b", A + PLACE, A + RECORD + "SomeError: a"], (4,)),
        ([A + BEGUN, A + RECORD + "SomeError: a", B + ANNOUNCED, A + B + RECORD + "SomeError: b"], (1,)),
        ([A + ANNOUNCED, "Traceback (most recent call last):", "  File x", "OSError: y", RECORD + "SomeError: z"], (3,)),
        # No final line, or none within range.
        ([A + ANNOUNCED, A + BEGUN, PLACE, f"INFO {STAMP} SomeError: a", B + RECORD + "it goes on"], (0,)),
        ([A + ANNOUNCED, A + BEGUN, *[PLACE] * TORN_RANGE, B + RECORD + "SomeError: a"], (0,)),
    ],
)  # fmt: skip
def test_remains_of_a_torn_traceback_are_quoted(log, expected):
    assert root_error(log) == tuple(log[index] for index in expected)


def test_argument_error_after_traceback_is_not_the_root():
    log = "Traceback (most recent call last):\n  File x\nKeyError: 'a'\nvllm serve: error: bad\n"
    assert root_error(log) == ("KeyError: 'a'",)


def test_window_is_bounded_and_keeps_head_first_error_and_tail():
    def lines():
        yield "first line\n"
        for i in range(60_000):
            yield f"INFO step {i:06d} {'x' * 80}\n"
        yield "ValueError: the first error\n"
        for i in range(120_000):
            yield f"INFO later {i:06d} {'y' * 80}\n"
        yield "z" * 10_000 + "\n"
        yield "last line\n"

    kept = window(lines())
    assert sum(len(line) + 1 for line in kept) <= (4 << 20) + 3 * LONGEST_LINE
    assert (kept[0], kept[-1]) == ("first line", "last line")
    assert "ValueError: the first error" in kept
    assert max(map(len, kept)) == LONGEST_LINE
