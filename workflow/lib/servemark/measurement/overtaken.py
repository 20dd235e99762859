"""Whether a request waited for its first token while the servers read many later prompts.

One engine reads prompts in the order of arrival (FCFS, vLLM's default). A request that waits much longer than this queue explains was
delayed before its engine, for example in the router, or its engine stopped while others went on. The check cannot tell these two apart.

A request is overtaken if all of these hold:

* It waited ``LONG_S`` or longer.
* At least ``SHARE`` times the highest number of requests in flight, and at least ``FEWEST`` requests, started after it and got their first
  token before it. This number is estimated from below: prompts read during the wait, minus requests that already waited when it started.
* It waited more than ``FACTOR`` times as long as one chunk, its own prompt and the prompts read meanwhile take together. The times of
  prompts are estimated as in :mod:`servemark.measurement.stalls`. The time of its own prompt grows with the square of its length, which is
  the largest growth that attention causes.

Prompts from a prefix cache take much less time than others of the same length. So the check leaves out loads with more than ``CACHED`` of
their prompt tokens in the cache.

Seen in 13 closed loops on one to four H200 (32 to 512 requests in flight), for requests that at least 0.3 of the most in flight overtook.
In 12 loops they waited at most 1.07 times as long as explained. In the other loop, one request waited 44 s, 3.6 times as long.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from servemark.measurement.raw import Request
from servemark.measurement.reasons import AGAIN, reason
from servemark.measurement.silence import LONG_S
from servemark.measurement.stalls import Reading
from servemark.records import Reason

SHARE = 0.5
"""Overtaking requests, as a share of the most in flight. Seen without a delay: up to 0.97, so ``FACTOR`` decides most cases."""
FEWEST = 4
"""Overtaking requests. With fewer, one slow prompt of one engine looks like a delay."""
FACTOR = 2.0
"""Times the explained wait. Seen: at most 1.07, and 3.6 for a delayed request."""
CACHED = 0.1
"""Share of the prompts' tokens in the prefix cache. An assumption, not measured."""


def reasons(good: Sequence[Request], most_in_flight: int, cached: float | None) -> Iterator[Reason]:
    """Yield ``requests_overtaken`` if at least one request was overtaken.

    Args:
        good: completed requests whose times are possible.
        most_in_flight: the highest number of them at once.
        cached: share of the prompts' tokens in the prefix cache; None if the servers did not report it.
    """
    if not good or (cached or 0.0) > CACHED:
        return
    starts, ttfts = (np.array([getattr(request, name) for request in good]) for name in ("start", "ttft"))
    firsts = starts + ttfts
    in_order, starts_in_order = np.sort(firsts), np.sort(starts)
    before = np.searchsorted(in_order, starts, side="right")
    read = np.searchsorted(in_order, firsts) - before
    waiting = np.searchsorted(starts_in_order, starts, side="right") - 1 - before
    later = read - np.maximum(waiting, 0)
    suspects = (ttfts >= LONG_S) & (later >= max(FEWEST, SHARE * most_in_flight))
    if not suspects.any():
        return
    reading = Reading(starts, ttfts)
    usual_s, long_s = np.percentile(ttfts / np.maximum(1.0, reading.mean(starts, firsts)), [50, 95])
    chunk_s = np.mean([gap for request in good for gap in request.itls] or [0.0])
    lengths = np.array([request.input_tokens for request in good], dtype=np.float64)
    own_s = usual_s * np.maximum(1.0, lengths / max(1.0, float(np.median(lengths)))) ** 2
    explained = chunk_s + own_s + np.maximum(read * usual_s, reading.mean(starts, firsts) * long_s)
    late = suspects & (ttfts > FACTOR * explained)
    if late.any():
        worst = int(np.argmax(np.where(late, ttfts, 0.0)))
        detail = (
            f"{late.sum()} of {len(good)} requests waited too long for the first token. The longest wait was {ttfts[worst]:.1f} s. "
            f"The {read[worst]} prompts that the servers read meanwhile explain {explained[worst]:.1f} s. "
            f"At least {later[worst]} requests that started later got their first token before it. {AGAIN}"
        )
        yield reason("requests_overtaken", detail)
