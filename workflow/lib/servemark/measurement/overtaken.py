"""Whether requests waited for their first token although the servers read many later prompts meanwhile.

Engines read prompts in the order in which they arrive. A request that waits much longer than this queue explains was held on its way, for
example in the router. Such a wait lasts about as long as a whole wave of requests. It makes the whole run longer, and the slowest TTFT is
not the server's.

A request is overtaken if all of these hold:

* It waited ``LONG_S`` or longer.
* Requests that started after it got their first token before it, and they are at least ``SHARE`` of the most requests in flight. As many of
  the prompts read meanwhile as requests waited at its start count as earlier ones.
* It waited more than ``FACTOR`` times as long as one step, its own prompt and the prompts read meanwhile take together. Their times are
  those of :mod:`servemark.measurement.stalls`. The time of its own prompt grows with its tokens.

Seen in 13 closed loops on one to four H200 (32 to 512 requests in flight): at least 0.3 of the most requests in flight overtook some
requests. These waited at most 1.07 times as long as explained. One request waited 44 s, 3.6 times as long: the router held it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from servemark.measurement.raw import Request
from servemark.measurement.reasons import reason
from servemark.measurement.silence import LONG_S
from servemark.measurement.stalls import Reading
from servemark.records import Reason

SHARE = 0.5
FACTOR = 2.0


def reasons(good: Sequence[Request], most_in_flight: int) -> Iterator[Reason]:
    """Yield ``requests_overtaken`` if at least one request was. ``good``: requests whose times are possible."""
    if not good:
        return
    starts, ttfts = (np.array([getattr(request, name) for request in good]) for name in ("start", "ttft"))
    firsts = starts + ttfts
    in_order, starts_in_order = np.sort(firsts), np.sort(starts)
    before = np.searchsorted(in_order, starts, side="right")
    read = np.searchsorted(in_order, firsts) - before
    waiting = np.searchsorted(starts_in_order, starts, side="right") - 1 - before
    later = read - np.maximum(waiting, 0)
    suspects = (ttfts >= LONG_S) & (later >= max(1.0, SHARE * most_in_flight))
    if not suspects.any():
        return
    reading = Reading(starts, ttfts)
    usual_s, long_s = np.percentile(ttfts / np.maximum(1.0, reading.mean(starts, firsts)), [50, 95])
    step_s = np.mean([gap for request in good for gap in request.itls] or [0.0])
    prompts = np.array([request.input_tokens for request in good])
    own_s = usual_s * prompts / max(1.0, float(np.median(prompts)))
    explained = step_s + own_s + np.maximum(read * usual_s, reading.mean(starts, firsts) * long_s)
    held = suspects & (ttfts > FACTOR * explained)
    if held.any():
        worst = int(np.argmax(np.where(held, ttfts, 0.0)))
        detail = (
            f"{held.sum()} of {len(good)} requests waited up to {ttfts[worst]:.1f} s for the first token. Meanwhile the servers read "
            f"{read[worst]} prompts, and at least {later[worst]} of their requests had started later. This queue explains "
            f"{explained[worst]:.1f} s."
        )
        yield reason("requests_overtaken", detail)
