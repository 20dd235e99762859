"""Progress in the user's words. Stages append one line each to ``progress.jsonl``; the main process shows them.

The file is the channel because stages run in other processes and, on a cluster, on other machines.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TextIO

POLL_S = 0.3


class Progress:
    """Appends what one stage does; lines are written whole (O_APPEND), so several writers never mix."""

    def __init__(self, path: Path | None, stage: str, subject: str = "", log: str = ""):
        self._path, self._stage, self._subject, self._log = path, stage, subject, log
        self._begin = time.monotonic()
        self.lost = False
        self._last = (0.0, "")

    def say(self, text: str, **more: Any) -> None:
        """Tell one thing now, or set ``lost``: a full disk must not end a stage that still has servers to stop.

        Args:
            more: JSON values for the main process.
        """
        self._last = (time.monotonic(), text)
        if self._path is None:
            return
        fields = {"time": time.time(), "stage": self._stage, "subject": self._subject, "text": text, "log": self._log}
        line = (json.dumps(fields | more, ensure_ascii=False) + "\n").encode()
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                self.lost = os.write(handle, line) < len(line)
            finally:
                os.close(handle)
        except OSError:
            self.lost = True

    def waiting(self, text: str, every_s: float = 5.0, about: str | None = None) -> None:
        """Tell what is waited for, with the time so far; at once when it is another thing than before, else each ``every_s`` seconds.

        Args:
            about: what is waited for, where the text has numbers that change; the text itself when left out.
        """
        when, last = self._last
        key = about or text
        if key != last or time.monotonic() - when >= every_s:
            self.say(f"{text}, {time.monotonic() - self._begin:.0f} s so far")
            self._last = (time.monotonic(), key)


def format_line(line: dict[str, object], begin: float) -> str:
    """Return one line for the terminal: time since the run's start, subject, stage, text, and the log when something is waited for."""
    seconds = max(0, int(float(str(line["time"])) - begin))
    clock = f"{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    text = str(line["text"])
    log = f"  [log: {line['log']}]" if line.get("log") and "so far" in text else ""
    return f"{clock}  {line['subject']!s:<12} {line['stage']!s:<20} {text}{log}"


class Display(threading.Thread):
    """Shows what is appended to the file from now on.

    Args:
        check: gives texts of the main process's own to show after a line.
    """

    def __init__(
        self,
        path: Path,
        stream: TextIO = sys.stderr,
        check: Callable[[Mapping[str, Any]], Iterable[str]] = lambda _: (),
    ):
        super().__init__(name="progress", daemon=True)
        self._path, self._stream, self._check, self._begin = path, stream, check, time.time()
        self._offset = path.stat().st_size if path.exists() else 0
        self._ended = threading.Event()

    def run(self) -> None:
        """Show new lines until the thread is told to end."""
        while not self._ended.wait(POLL_S):
            self._show()
        self._show()

    def end(self) -> None:
        """Show what is left and stop."""
        self._ended.set()
        self.join(timeout=2)

    def _show(self) -> None:
        if not self._path.exists():
            return
        with open(self._path, "rb") as stream:
            stream.seek(self._offset)
            block = stream.read()
        whole, _, _ = block.rpartition(b"\n")  # the last line may still be on its way
        if not whole:
            return
        self._offset += len(whole) + 1
        for line in whole.splitlines():
            # A file system that does not append whole lines for several machines must not end the display.
            with contextlib.suppress(ValueError, TypeError, KeyError):
                told = json.loads(line)
                print(format_line(told, self._begin), file=self._stream, flush=True)
                for text in self._check(told):
                    print(format_line(told | {"text": text}, self._begin), file=self._stream, flush=True)
