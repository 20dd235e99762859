"""The live display in a pseudo-terminal, and plain lines where none is wanted."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterator

import pytest

from builders.terminal import Terminal
from integration.harness import Checkout, wait_until

# Slow enough to be seen: 160 requests of 4 tokens, 20 ms each.
SLOW = {"STANDIN_TOKEN_S": "0.02", "TERM": "xterm-256color", "CI": ""}
SECONDS = 300


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    made = Terminal(110, 40)
    yield made
    made.close()


@pytest.fixture
def checkout(checkouts: Callable[[], Checkout]) -> Checkout:
    made = checkouts()
    made.config["workloads"]["chat"] |= {"requests": 160, "concurrency": [2]}
    return made


def rows(terminal: Terminal, *words: str) -> list[str]:
    """Return the lines on the screen that hold all ``words``."""
    return [line for line in terminal.shown if all(word in line for word in words)]


def test_live_display_shows_the_run_and_leaves_a_clean_terminal(checkout, terminal):
    modes = terminal.modes
    running = checkout.start(terminal=terminal, **SLOW)
    wait_until(lambda: rows(terminal, "injured", "0 of 2 load points"), SECONDS, "the headline")
    wait_until(lambda: rows(terminal, "measure", "chat-c2-r1", " of 160 requests"), SECONDS, "the first deployment measures")
    wait_until(lambda: len(rows(terminal, "start_cluster", "in use by deployment")) == 1, SECONDS, "the other one waits, in one row")
    wait_until(lambda: rows(terminal, "injured", "1 of 2 load points", "left"), SECONDS, "an estimate of the time left")
    terminal.resize(100, 40)
    wait_until(lambda: rows(terminal, "output tokens/s, TTFT", " of 160 requests"), SECONDS, "rate and TTFT of the second one")
    assert running.wait(SECONDS).rc == 0
    wait_until(lambda: rows(terminal, "Elapsed time"), 60, "the end of the output")
    text = terminal.scrolled
    assert len([line for line in text if re.search("c2-r1: (VALID|SUSPECT)", line)]) == 2, "one line for each point, with its verdict"
    assert not [line for line in text if "load points," in line and "elapsed" in line], "no row of the display is left"
    assert terminal.modes == modes and b"\x1b[?25l" not in terminal.raw, "the cursor was never hidden"


def test_ctrl_c_removes_the_rows_and_restores_the_terminal(checkout, terminal):
    modes = terminal.modes
    running = checkout.start(terminal=terminal, **SLOW)
    wait_until(lambda: rows(terminal, "measure", " of 160 requests"), SECONDS, "the first deployment measures")
    running.interrupt(signal.SIGINT, group=True)
    assert running.wait(120).rc != 0
    wait_until(lambda: [line for line in terminal.scrolled if "servemark: SIGINT" in line], 60, "the message about the signal")
    assert not rows(terminal, "elapsed") and terminal.modes == modes
    checkout.assert_all_dead()


# Every other run of the tests prints plain lines, because its output is a file.
@pytest.mark.full
def test_quiet_run_prints_plain_lines_at_a_terminal(checkout, terminal):
    running = checkout.start("--quiet", terminal=terminal, **SLOW)
    assert running.wait(SECONDS).rc == 0
    wait_until(lambda: rows(terminal, "archive"), 60, "the end of the output")
    assert b"\x1b" not in terminal.raw
    text = terminal.scrolled
    assert len([line for line in text if re.search("c2-r1: (VALID|SUSPECT)", line)]) == 2
    waits = [line.split()[0] for line in text if " start_cluster " in line and "in use by deployment" in line]
    assert len(waits) <= 1, "what is waited for is one line, not one every few seconds"
