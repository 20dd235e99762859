"""Progress as lines of text: for a log file, a pipe, and a terminal without a live display."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from servemark.progress import clock

# Seconds between two lines of one subject that report no result; between two with the same text.
EVERY_S = 30.0
REPEAT_S = 300.0


@dataclass
class PlainLines:
    """Chooses and formats the lines to print: each result, and at most one other line of a subject in 30 seconds.

    Args:
        begin: start of the run, seconds since 1970.
    """

    begin: float
    _printed: dict[str, tuple[float, str]] = field(default_factory=dict)

    def line(self, line: Mapping[str, Any]) -> str | None:
        """Return the text for a line of ``progress.jsonl``; None for one that is not printed."""
        if line.get("ended") or not line["text"]:
            return None
        if "waiting" in line:
            subject, when, text = str(line["subject"]), float(line["time"]), str(line["text"])
            last, before = self._printed.get(subject, (0.0, ""))
            if when - last < (REPEAT_S if text == before else EVERY_S):
                return None
            self._printed[subject] = (when, text)
        return format_line(line, self.begin)


def format_line(line: Mapping[str, Any], begin: float) -> str:
    """Return time since the run's start, subject, stage and text; for a wait also its duration and the log."""
    text = str(line["text"])
    if "waiting" in line:
        text += f", {line['waiting']:.0f} s" + (f"  [log: {line['log']}]" if line.get("log") else "")
    return f"{clock(float(line['time']) - begin)}  {line['subject']!s:<12} {line['stage']!s:<20} {text}"
