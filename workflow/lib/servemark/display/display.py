"""The thread that displays the progress of a run."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from rich.console import ConsoleDimensions, RenderableType

from servemark.display import live_rows, screen
from servemark.display.plain import PlainLines
from servemark.display.queue import Queue
from servemark.display.run_state import RunState
from servemark.display.tail import Tail

POLL_S = 0.3
STYLES = {"SUSPECT": "yellow", "INVALID": "red"}
Check = Callable[[Mapping[str, Any]], Iterable[str]]


class Display(threading.Thread):
    """Prints results as lines and, at a terminal, shows the active stages below them.

    Args:
        folder: of the run. Its ``progress.jsonl`` is displayed from now on.
        check: returns further texts for a line.
        queue: the jobs of a run on a cluster.
    """

    def __init__(self, folder: Path, state: RunState, check: Check = lambda _: (), queue: Queue | None = None):
        super().__init__(name="progress", daemon=True)
        self._run, self._state, self._check, self._queue = folder.name, state, check, queue
        self._begin = time.time()
        self._tail, self._plain = Tail(folder / "progress.jsonl"), PlainLines(self._begin)
        self._ended, self._lock = threading.Event(), threading.Lock()
        found = screen.installed
        self._screen = found if found and found.can_live else None

    def run(self) -> None:
        """Display new lines until :meth:`end`."""
        if self._screen:
            self._screen.begin(self._render)
        try:
            while not self._ended.wait(POLL_S):
                self._show()
            self._show()
        finally:
            if self._screen:
                self._screen.end()

    def end(self) -> None:
        """Print the last lines, remove the live rows and stop."""
        self._ended.set()
        self.join(timeout=5)
        if self.is_alive():  # Slurm responds slowly
            self.release()

    def release(self) -> None:
        """Release the terminal at once; for a process that is about to exit."""
        if self._screen:
            self._screen.release()

    def _render(self, size: ConsoleDimensions) -> RenderableType:
        with self._lock:
            return live_rows.render(self._state, self._run, self._begin, time.time(), size)

    def _show(self) -> None:
        # A shared disk may fail for a while; the next call continues.
        with contextlib.suppress(OSError):
            self._read()

    def _read(self) -> None:
        for deployment in self._queue.ended() if self._queue else ():
            with self._lock:
                self._state.remove(deployment)
        queued = self._queue.lines(time.time()) if self._queue else []
        for line in [*self._tail.lines(), *queued]:
            # A damaged line must not end the display.
            with contextlib.suppress(ValueError, TypeError, KeyError):
                self._one(line)

    def _one(self, line: Mapping[str, Any]) -> None:
        with self._lock:
            self._state.update(line)
        if self._screen and "waiting" in line:
            return
        style = STYLES.get((line.get("point") or {}).get("verdict", ""))
        for text in (line["text"], *self._check(line)):
            if shown := self._plain.line({**line, "text": text}):
                screen.say(shown, style)
