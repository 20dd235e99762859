"""A terminal for tests: a pseudo-terminal, and what a person would see on it (pyte)."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import struct
import termios
import threading
from typing import Any

import pyte


class Terminal:
    """A pseudo-terminal whose output is read by a thread of this process until :meth:`close`."""

    def __init__(self, columns: int = 100, lines: int = 30):
        self._screen = pyte.HistoryScreen(columns, lines, history=10_000, ratio=1.0)
        self._stream, self._lock = pyte.ByteStream(self._screen), threading.Lock()
        self.raw, self._closing = b"", threading.Event()
        self._ours, self._theirs = pty.openpty()
        self.resize(columns, lines)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def ends(self) -> dict[str, Any]:
        """Return standard input, output and error for a process in this terminal."""
        return {"stdin": self._theirs, "stdout": self._theirs, "stderr": self._theirs}

    def resize(self, columns: int, lines: int) -> None:
        """Change the size, as the user does with a window."""
        with self._lock:
            self._screen.resize(lines, columns)
        fcntl.ioctl(self._theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    @property
    def modes(self) -> list[Any]:
        """The settings of the terminal (tcgetattr)."""
        return termios.tcgetattr(self._theirs)

    @property
    def shown(self) -> list[str]:
        """The lines on the screen now."""
        with self._lock:
            return [line.rstrip() for line in self._screen.display]

    @property
    def scrolled(self) -> list[str]:
        """All lines, those that scrolled off the top included."""
        with self._lock:
            above = ["".join(row[column].data for column in range(self._screen.columns)).rstrip() for row in self._screen.history.top]
            return above + [line.rstrip() for line in self._screen.display]

    @property
    def cursor_hidden(self) -> bool:
        """Whether the cursor is hidden."""
        with self._lock:
            return bool(self._screen.cursor.hidden)

    def _read(self) -> None:
        # EIO: no process has the other end open.
        with contextlib.suppress(OSError):
            while not self._closing.is_set():
                if not select.select([self._ours], [], [], 0.05)[0]:
                    continue
                if not (block := os.read(self._ours, 65536)):
                    return
                with self._lock:
                    self.raw += block
                    self._stream.feed(block)

    def close(self) -> None:
        """Close both ends. The reader ends first: otherwise it would read the next file that gets the same descriptor."""
        os.close(self._theirs)
        self._reader.join(5)  # a process may still have the other end open
        self._closing.set()
        self._reader.join()
        os.close(self._ours)
