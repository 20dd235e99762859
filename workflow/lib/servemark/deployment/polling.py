"""One wait for something that starts: asked until it says that it is ready, while it lives, within its time, and not in silence."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from servemark.config.model import Timeouts
from servemark.diagnosis.startup_log import StartupLog
from servemark.errors import StageFailed

INTERVAL_S = 0.25


@dataclass(frozen=True)
class Waited:
    """Result of a successful wait; seconds since the server process was started."""

    seconds_to_health: float
    seconds_to_first_token: float


def poll(
    probe: Callable[[], str],
    read_log: Callable[[], bool],
    died: Callable[[], bool],
    *,
    timeouts: Timeouts,
    begin: float,
    tell: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Waited:
    """Wait until ``probe`` says ``ready``.

    Args:
        probe: ``ready``, ``healthy`` (answers /health, no completion yet) or words for what is missing.
        read_log: whether the log has moved since the last call.
        died: whether the process has ended.
        timeouts: ``start`` for the whole start, ``stall`` for the longest silence of the log.
        begin: ``clock()`` at process start.

    Raises:
        StageFailed: reason ``server_exited``, ``startup_timeout`` or ``startup_stalled``.
    """
    moved_at, healthy_at = clock(), None
    while True:
        if died():
            raise StageFailed("The server ended before it was ready.", reason="server_exited")
        answer = probe()
        if healthy_at is None and answer in ("healthy", "ready"):
            healthy_at = clock() - begin
        if answer == "ready":
            assert healthy_at is not None
            return Waited(round(healthy_at, 2), round(clock() - begin, 2))
        if read_log():
            moved_at = clock()
        tell(answer)
        if clock() - begin > timeouts.start:
            raise StageFailed(f"The server was not ready after {timeouts.start:.0f} s (last: {answer}).", reason="startup_timeout")
        if clock() - moved_at > timeouts.stall:
            raise StageFailed(f"The server's log has been silent for {timeouts.stall:.0f} s (last: {answer}).", reason="startup_stalled")
        sleep(INTERVAL_S)


class Tail:
    """Feeds what is appended to the server's log to the parser."""

    def __init__(self, path: Path, log: StartupLog):
        self._path, self._log, self._offset = path, log, 0

    def __call__(self) -> bool:
        """Read what was appended; return whether the server has made progress."""
        with open(self._path, errors="replace") as stream:
            stream.seek(self._offset)
            text = stream.read()
            self._offset = stream.tell()
        before = self._log.progress
        self._log.feed(text)
        return self._log.progress != before
