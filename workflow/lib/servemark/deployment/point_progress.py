"""Progress of a load point while it is measured, from the counters that the server watch scrapes."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from servemark.deployment.watch import Load
from servemark.progress import Progress
from servemark.records import LoadPoint, Measurement

EVERY_S = 2.0
# Output tokens/s is the mean of the last seconds: long enough for servers that return many tokens at a time.
WINDOW_S = 5.0


@dataclass
class PointProgress:
    """Reports the phase of a point, its finished requests, output tokens/s and mean TTFT.

    The counters of the servers run from their start, so the first sample is subtracted. Warm-ups come first and are not counted.

    Args:
        clock: seconds, monotonic.
    """

    point: LoadPoint
    progress: Progress
    clock: Callable[[], float] = time.monotonic
    _first: Load | None = None
    _warm: Load | None = None
    _recent: deque[tuple[float, Load]] = field(default_factory=deque)

    def report(self, now: Load | None) -> None:
        """Write the progress. ``now``: the sum over all servers; None while one of them has not responded yet."""
        state = self._state(now) if now else {"phase": "starting the client"}
        state |= {"name": self.point.name, "requests": self.point.requests}
        words = f"{self.point.name}: {self.point.requests} requests, {in_words(state)}"
        self.progress.waiting(words, every_s=EVERY_S, about=f"{self.point.name} {state['phase']}", point=state)

    def _state(self, now: Load) -> dict[str, Any]:
        self._first = self._first or now
        finished = now.finished - self._first.finished
        if finished == 0 and now.open_requests == 0:
            return {"phase": "starting the client"}
        if finished < self.point.warmups or (finished == self.point.warmups and now.open_requests == 0):
            return {"phase": "warm-up", "finished": finished, "warmups": self.point.warmups}
        self._warm = self._warm or now
        moment = self.clock()
        self._recent.append((moment, now))
        while moment - self._recent[0][0] > WINDOW_S:
            self._recent.popleft()
        begin, earlier = self._recent[0]
        state: dict[str, Any] = {"phase": "measuring", "finished": min(finished - self.point.warmups, self.point.requests)}
        if moment > begin:
            state["tokens_per_s"] = round((now.generated - earlier.generated) / (moment - begin), 1)
        if counted := now.ttft_count - self._warm.ttft_count:
            state["ttft_ms"] = round(1000 * (now.ttft_s - self._warm.ttft_s) / counted, 1)
        return state


def in_words(state: dict[str, Any]) -> str:
    """Return the state of a point for a line of text."""
    if state["phase"] == "starting the client":
        return "starting the client"
    if state["phase"] == "warm-up":
        return f"warm-up: {state['finished']} of {state['warmups']} finished"
    words = [f"{state['finished']} finished"]
    if "tokens_per_s" in state:
        words.append(f"{state['tokens_per_s']:,.0f} output tokens/s")
    if "ttft_ms" in state:
        words.append(f"mean TTFT {state['ttft_ms']:,.0f} ms")
    return ", ".join(words)


def finished_point(record: Measurement, shown: str, **more: Any) -> dict[str, Any]:
    """Return what the display of progress needs of a finished point."""
    return {"phase": "finished", "name": shown or record.load.name, "verdict": record.verdict, **more}


def result_words(record: Measurement) -> str:
    """Return the verdict and results of a point for a line of text."""
    if record.verdict == "INVALID":
        return f"INVALID: {'; '.join(reason.detail for reason in record.reasons if reason.severity == 'INVALID')}"
    mark = f" ({', '.join(reason.code for reason in record.reasons)})" if record.verdict == "SUSPECT" else ""
    ttft = f", TTFT mean {record.ttft_ms.mean:.0f} ms, p95 {record.ttft_ms.p95:.0f} ms" if record.ttft_ms else ""
    return f"{record.verdict}, {record.output_throughput:,.0f} output tokens/s{ttft}{mark}"
