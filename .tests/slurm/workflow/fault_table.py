"""One row for each injected fault: expected and actual message, times, leftovers."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from integration.harness import Finished, Running

if TYPE_CHECKING:
    from scheduled_checkout import ScheduledCheckout

HEAD = ("fault", "expected", "seen", "to the end (s)", "rerun (s)", "left behind")


@dataclass
class Injury:
    """A row that the test fills in step by step; unreached cells of a failed test stay a dash.

    Attributes:
        fault: the injected fault.
        expected: the message that the run must print, as a pattern.
        seen: the printed message.
        end_s: from the fault to the run's end.
        rerun_s: how long the plain rerun took.
        left: leftovers of the run afterwards.
    """

    fault: str = ""
    expected: str = ""
    seen: str = "-"
    end_s: float | None = None
    rerun_s: float | None = None
    left: str = "-"
    _pattern: str = field(default="", repr=False)

    def of(self, fault: str, pattern: str, expected: str | None = None) -> None:
        """Set the fault and the pattern that the run's output must match; ``expected`` is its text for readers."""
        self.fault, self._pattern, self.expected = fault, pattern, expected or _readable(pattern)

    def check_reason(self, text: str) -> None:
        """Assert that the text states the reason."""
        found = re.search(self._pattern, text)
        if found:
            self.seen = " ".join(found[0].split())
        assert found, f"nothing says {self._pattern!r} in:\n{text}"

    def ends(self, checkout: ScheduledCheckout, running: Running, within_s: float, since: float, gone_s: float | None) -> Finished:
        """Wait for the run's end, at most ``within_s`` after the fault, and assert that it prints the reason.

        Args:
            since: when the fault was injected, ``time.monotonic()``.
            gone_s: seconds after the end until nothing may be left; None: the fault itself leaves something.
        """
        done = running.wait(max(1.0, since + within_s - time.monotonic()))
        self.end_s = time.monotonic() - since
        self.check_reason(done.text)
        if gone_s is None:
            return done
        try:
            checkout.assert_nothing_left(gone_s)
        except AssertionError as error:
            self.left = str(error)[:300]
            raise
        self.left = "nothing"
        return done

    def completed_by(self, done: Finished) -> None:
        """Record that a plain rerun has completed."""
        self.rerun_s = done.seconds
        assert done.rc == 0, done.text

    def cells(self) -> tuple[str, ...]:
        """Return the cells as text, in the order of the columns."""
        times = ("-" if seconds is None else f"{seconds:.0f}" for seconds in (self.end_s, self.rerun_s))
        return (self.fault, self.expected, self.seen, *times, self.left)


def _readable(pattern: str) -> str:
    """Return a pattern in readable form: ``job N`` for ``job \\d+``."""
    for code, words in (
        (r"\d+", "N"),
        (r"\S+", "..."),
        (".+", "..."),
        (r"[\w, ]*", ".."),
        ("\\", ""),
    ):
        pattern = pattern.replace(code, words)
    return pattern


@dataclass
class FaultTable:
    """All rows, in the order of the tests."""

    rows: list[Injury] = field(default_factory=list)

    def markdown(self) -> str:
        """Return the table as Markdown."""
        lines = [HEAD, ("---",) * len(HEAD), *(row.cells() for row in self.rows if row.fault)]
        return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)
