"""The terminal of a run: messages scroll, and rows of the live display stay below them.

Everything that reaches the terminal passes through here: records of Snakemake's log (snakemake_logger_plugin_servemark), servemark's own
lines, and what child processes write to stdout and stderr. The live display replaces both file descriptors and restores them at its end.
"""

import contextlib
import logging
import os
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Console, ConsoleDimensions, RenderableType
from rich.live import Live
from rich.text import Text

PER_SECOND = 2
# Field of a log record: the style of its text.
STYLE = "servemark_style"
LOGGER = "snakemake.logging"


class _Terminal(Console):
    """A console that asks its own file for its size, and never hides the cursor: a killed process could not show it again."""

    @property
    def size(self) -> ConsoleDimensions:
        with contextlib.suppress(OSError):
            columns, lines = os.get_terminal_size(self.file.fileno())
            if columns and lines:
                return ConsoleDimensions(columns, lines)
        return ConsoleDimensions(80, 24)

    @size.setter
    def size(self, _: tuple[int, int]) -> None:
        raise AttributeError("the terminal decides")

    def show_cursor(self, show: bool = True) -> bool:  # noqa: ARG002 - the library's signature
        return False


class Screen:
    """Prints text, above the live display while there is one.

    Args:
        can_live: a live display is wanted here. It also needs a terminal.
    """

    def __init__(self, *, can_live: bool, stdout: bool = False):
        self.can_live = can_live and sys.stderr.isatty() and is_capable(os.environ)
        self._stdout = stdout
        self._live: Live | None = None
        self._saved: dict[int, int] = {}

    def print(self, text: str, style: str | None = None) -> None:
        """Print text as it is. If the terminal is gone, the text is lost and the run continues."""
        try:
            if live := self._live:
                # The terminal wraps long lines, so that a copied command or path stays whole.
                live.console.print(Text(text, style=style or ""), soft_wrap=True)
            else:
                print(text, file=sys.stdout if self._stdout else sys.stderr, flush=True)
        except BrokenPipeError:
            raise
        except OSError:
            self._live = None
            self._discard_output()

    def begin(self, render: Callable[[ConsoleDimensions], RenderableType]) -> None:
        """Show what ``render`` returns for the terminal's size, twice a second, until :meth:`end`."""
        read, write = os.pipe()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        self._saved = {number: os.dup(number) for number in (1, 2) if os.isatty(number)}
        for number in self._saved:
            os.dup2(write, number)
        os.close(write)
        threading.Thread(target=self._pump, args=[read], name="terminal output", daemon=True).start()
        terminal = os.fdopen(os.dup(self._saved[2]), "w", encoding="utf-8", errors="replace")
        console = _Terminal(file=terminal, force_terminal=True, highlight=False)
        live = Live(
            get_renderable=lambda: render(console.size),
            console=console,
            refresh_per_second=PER_SECOND,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        live.start()
        self._live = live

    def end(self) -> None:
        """Remove the live rows and release the terminal."""
        live, self._live = self._live, None
        if live:
            with contextlib.suppress(OSError):
                for stream in (sys.stdout, sys.stderr):
                    stream.flush()
                live.stop()
            self.release()

    def release(self) -> None:
        """Restore the file descriptors, without a lock: also for a process that ends at once."""
        saved, self._saved = self._saved, {}
        for number, copy in saved.items():
            os.dup2(copy, number)
            os.close(copy)

    def _discard_output(self) -> None:
        """Discard the output of this process and of later children."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for number in self._saved:
            os.dup2(nowhere, number)
        os.close(nowhere)
        self._saved = {}

    def _pump(self, read: int) -> None:
        """Print what arrives in the pipe, by lines, as long as a process may write to it."""
        with os.fdopen(read, encoding="utf-8", errors="replace") as stream:
            for line in stream:
                self.print(line.rstrip("\n"))


def is_capable(environ: Mapping[str, str]) -> bool:
    """Return whether a live display suits this environment: no continuous integration, no dumb terminal."""
    return not environ.get("CI") and environ.get("TERM", "dumb") != "dumb"


# Set by the logger plugin, if Snakemake was started with it.
installed: Screen | None = None


def install(screen: Screen) -> None:
    """Make a screen the one of this process."""
    global installed
    installed = screen


def say(text: str, style: str | None = None) -> None:
    """Print a text of servemark in order with Snakemake's own; without the logger plugin, at once."""
    if installed is None:
        print(text, file=sys.stderr, flush=True)
    else:
        extra: dict[str, Any] = {STYLE: style}
        logging.getLogger(LOGGER).info(text, extra=extra)
