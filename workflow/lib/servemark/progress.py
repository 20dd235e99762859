"""Progress of the stages: each appends lines to ``progress.jsonl``, which the main process displays (:mod:`servemark.display`).

A file, because stages run in other processes and, on a cluster, on other machines.
"""

import json
import time
from pathlib import Path
from typing import Any


class Progress:
    """Appends one stage's lines, each with one write (O_APPEND), so that several writers never mix.

    A line has ``time`` (seconds since 1970), ``stage``, ``subject`` (a deployment, an environment or a model), ``text`` and ``log``.
    ``waiting``: seconds that the stage has waited; absent from a line that reports a result. ``ended``: the stage has ended.
    ``point``: state of a load point (:mod:`servemark.deployment.point_progress`).
    """

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

    def waiting(self, text: str, every_s: float = 5.0, about: str | None = None, **more: Any) -> None:
        """Write what the stage waits for or works on: at once when it changes, else every ``every_s`` seconds.

        ``about`` names it if the text has numbers that change.
        """
        when, last = self._last
        key = about or text
        if key != last or time.monotonic() - when >= every_s:
            self.say(text, waiting=round(time.monotonic() - self._begin, 1), **more)
            self._last = (time.monotonic(), key)

    def end(self) -> None:
        """Write that the stage has ended, with or without success."""
        self.say("", ended=True)


def clock(seconds: float) -> str:
    """Return ``H:MM:SS``."""
    whole = max(0, int(seconds))
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"
