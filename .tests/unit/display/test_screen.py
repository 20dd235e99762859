"""The screen in a pseudo-terminal: texts of this process and of its children above the rows, in whole lines."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

from builders.terminal import Terminal
from servemark.display.screen import is_capable

PROGRAM = """
import os, subprocess, sys, threading, time
from rich.text import Text
from servemark.display.screen import Screen

screen = Screen(can_live=True)
assert screen.can_live
before = [os.fstat(number).st_rdev for number in (1, 2)]
screen.begin(lambda size: Text(f"ROW {size.width}"))
child = "import sys, time\\nfor n in range(40):\\n sys.stderr.write(f'child {n} ' + 'x' * 50 + chr(10)); time.sleep(0.01)"
children = [subprocess.Popen([sys.executable, "-c", child]) for _ in range(2)]
for number in range(40):
    screen.print(f"own {number} " + "y" * 50, "red")
    time.sleep(0.01)
print("on stdout", flush=True)
for one in children:
    one.wait()
if "closed" in sys.argv:
    while os.path.exists(sys.argv[-1]):
        time.sleep(0.05)
    for number in range(2000):
        screen.print(f"lost {number}")
        os.write(2, b"lost too " * 100)
    screen.end()
    sys.exit(3)
if "exit" in sys.argv:
    screen.release()
    os.write(2, b"last words\\n")
    os._exit(7)
time.sleep(1.2)
screen.end()
assert [os.fstat(number).st_rdev for number in (1, 2)] == before
print("after the end", file=sys.stderr)
"""


@pytest.fixture
def terminal():
    made = Terminal(90, 30)
    yield made
    made.close()


def run(terminal, *arguments):
    return start(terminal, *arguments).wait(120)


def start(terminal, *arguments):
    environment = {**os.environ, "TERM": "xterm-256color"}
    environment.pop("CI", None)
    argv = [sys.executable, "-c", textwrap.dedent(PROGRAM), *arguments]
    return subprocess.Popen(argv, env=environment, **terminal.ends())


def test_lines_of_all_processes_are_whole_and_the_rows_are_removed(terminal, wait_for):
    assert run(terminal) == 0
    wait_for(lambda: "after the end" in terminal.scrolled)
    lines = [line for line in terminal.scrolled if line]
    for number in range(40):
        assert lines.count(f"own {number} " + "y" * 50) == 1
        assert lines.count(f"child {number} " + "x" * 50) == 2
    assert lines.count("on stdout") == 1 and not [line for line in lines if "ROW" in line]
    assert b"ROW 90" in terminal.raw


def test_process_that_exits_at_once_has_the_terminal_back(terminal, wait_for):
    assert run(terminal, "exit") == 7
    wait_for(lambda: any("last words" in line for line in terminal.scrolled))


def test_process_continues_when_its_terminal_is_closed(tmp_path, wait_for):
    terminal, open_ = Terminal(90, 30), tmp_path / "open"
    open_.touch()
    process = start(terminal, "closed", str(open_))
    wait_for(lambda: sum(line.startswith("child 39 ") for line in terminal.scrolled) == 2)
    terminal.close()
    open_.unlink()
    assert process.wait(120) == 3


@pytest.mark.parametrize(
    ("environment", "capable"),
    [({"TERM": "xterm"}, True), ({"TERM": "dumb"}, False), ({}, False), ({"TERM": "xterm", "CI": "true"}, False)],
)
def test_no_live_display_in_continuous_integration_or_a_dumb_terminal(environment, capable):
    assert is_capable(environment) is capable
