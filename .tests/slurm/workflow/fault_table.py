"""One row for each injected fault: what was expected, what was seen, how long it took, what was left."""

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
    """A row, filled in while the test goes on; what a failed test did not come to stays a dash.

    Attributes:
        fault: what was done to the run.
        expected: what the run must say of it, a pattern.
        seen: what it said.
        end_s: from the fault to the run's end.
        rerun_s: how long the plain rerun took.
        left: what there was of the run afterwards.
    """

    fault: str = ""
    expected: str = ""
    seen: str = "-"
    end_s: float | None = None
    rerun_s: float | None = None
    left: str = "-"
    _pattern: str = field(default="", repr=False)

    def of(self, fault: str, pattern: str, expected: str | None = None) -> None:
        """Say what is injected, and the pattern that a run's output must hold for it; ``expected`` says the same to a reader."""
        self.fault, self._pattern, self.expected = fault, pattern, expected or _readable(pattern)

    def check_reason(self, text: str) -> None:
        """The text must state the reason."""
        found = re.search(self._pattern, text)
        if found:
            self.seen = " ".join(found[0].split())
        assert found, f"nothing says {self._pattern!r} in:\n{text}"

    def ends(self, checkout: ScheduledCheckout, running: Running, within_s: float, since: float, gone_s: float | None) -> Finished:
        """Wait for the run's end, at most ``within_s`` after the fault, and see that it says why.

        Args:
            since: when the fault was injected, ``time.monotonic()``.
            gone_s: within so many seconds of the end nothing may be left; None: something is left, by the fault's nature.
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

    def mended_by(self, done: Finished) -> None:
        """A plain rerun has completed."""
        self.rerun_s = done.seconds
        assert done.rc == 0, done.text

    def cells(self) -> tuple[str, ...]:
        """As text, in the order of the columns."""
        times = ("-" if seconds is None else f"{seconds:.0f}" for seconds in (self.end_s, self.rerun_s))
        return (self.fault, self.expected, self.seen, *times, self.left)


def _readable(pattern: str) -> str:
    """A pattern as a reader of the table wants it: ``job N`` for ``job \\d+``."""
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
        """The table as Markdown."""
        lines = [HEAD, ("---",) * len(HEAD), *(row.cells() for row in self.rows if row.fault)]
        return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)
