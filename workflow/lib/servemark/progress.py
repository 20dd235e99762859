"""Progress for users. Stages append lines to ``progress.jsonl``; the main process prints them.

A file, because stages run in other processes and, on a cluster, on other machines.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TextIO

POLL_S = 0.3
Check = Callable[[Mapping[str, Any]], Iterable[str]]


class Progress:
    """Appends one stage's lines, each with one write (O_APPEND), so that several writers never mix."""

    def __init__(self, path: Path | None, stage: str, subject: str = "", log: str = ""):
        self._path, self._stage, self._subject, self._log = path, stage, subject, log
        self._begin = time.monotonic()
        self.lost = False
        self._last = (0.0, "")

    def say(self, text: str, **more: Any) -> None:
        """Write one line now, or set ``lost``: a full disk must not end a stage that still has servers to stop.

        ``more`` are JSON values for the main process.
        """
        self._last = (time.monotonic(), text)
        if self._path is None:
            return
        fields = {"time": time.time(), "stage": self._stage, "subject": self._subject, "text": text, "log": self._log}
        line = (json.dumps(fields | more, ensure_ascii=False) + "\n").encode()
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with open(self._path, "ab", buffering=0) as stream:
                self.lost = stream.write(line) < len(line)
        except OSError:
            self.lost = True

    def waiting(self, text: str, every_s: float = 5.0, about: str | None = None) -> None:
        """Write what is waited for, with the time so far: at once when it changes, else every ``every_s`` seconds.

        ``about`` names it if the text has numbers that change.
        """
        when, last = self._last
        key = about or text
        if key != last or time.monotonic() - when >= every_s:
            self.say(f"{text}, {time.monotonic() - self._begin:.0f} s so far")
            self._last = (time.monotonic(), key)


def clock(seconds: float) -> str:
    """Return ``H:MM:SS``."""
    whole = max(0, int(seconds))
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def format_line(line: Mapping[str, Any], begin: float) -> str:
    """Return one line for the terminal: time since the run's start, subject, stage, text, and the log if something is waited for."""
    log = f"  [log: {line['log']}]" if line.get("log") and "so far" in line["text"] else ""
    return f"{clock(float(line['time']) - begin)}  {line['subject']!s:<12} {line['stage']!s:<20} {line['text']}{log}"


class Display(threading.Thread):
    """Prints lines that are appended to the file from now on, each with the texts that ``check`` returns for it."""

    def __init__(self, path: Path, stream: TextIO = sys.stderr, check: Check = lambda _: ()):
        super().__init__(name="progress", daemon=True)
        self._path, self._stream, self._check, self._begin = path, stream, check, time.time()
        self._offset = path.stat().st_size if path.exists() else 0
        self._ended = threading.Event()

    def run(self) -> None:
        """Print new lines until :meth:`end`."""
        while not self._ended.wait(POLL_S):
            self._show()
        self._show()

    def end(self) -> None:
        """Print the last lines and stop."""
        self._ended.set()
        self.join(timeout=2)

    def _show(self) -> None:
        if not self._path.exists():
            return
        with open(self._path, "rb") as stream:
            stream.seek(self._offset)
            block = stream.read()
        whole = block[: block.rfind(b"\n") + 1]  # the last line may be incomplete
        self._offset += len(whole)
        for line in whole.splitlines():
            # A file system may mix the lines of several machines; that must not end the display.
            with contextlib.suppress(ValueError, TypeError, KeyError):
                found = json.loads(line)
                for text in (found["text"], *self._check(found)):
                    print(format_line(found | {"text": text}, self._begin), file=self._stream, flush=True)
