"""Whether streams stood still during a load: waits for the next token that neither steps nor prompts explain.

:mod:`servemark.measurement.silence` compares a silence of all streams with the other waits of the same load, so it misses a few long ones
that look alike, and streams of only one engine. This check compares each wait with the work of the server. Between two chunks a stream
waits for the steps of one chunk, and for the prompts that the server reads in the same steps. Their work is the larger of two numbers:

* prompts that got their first token meanwhile, each with the median time of a prompt
* prompts that were read at the same time on average, each with the 95th percentile of the time of a prompt, for prompts of several lengths

The time of a prompt is ``TTFT / (requests that wait for their first token meanwhile)``, by Little's law. A wait is a stall if it is
more than ``silence.FACTOR`` times as long as the mean wait and these prompts together.

Seen: with 512 streams on two and on four H200, waits of up to 4.6 s while hundreds of prompts were read were up to 1.0 and 2.8
times as long. On CPU no wait took 2 s. Kernels that were compiled during a point stopped all streams for 20 of 104 s.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from servemark.measurement.raw import Request
from servemark.measurement.reasons import AGAIN, reason
from servemark.measurement.silence import FACTOR, LONG_S
from servemark.measurement.statistics import span_of
from servemark.records import Reason

STALLED = "stalled"
SHARE = 0.02
"""Share of the streams' time in stalls from which on a measurement is SUSPECT. Seen: 0."""
STOP_S = 0.25
"""A shorter time without any token is no stop of the server."""


def reasons(good: Sequence[Request]) -> Iterator[Reason]:
    """Yield ``stalled`` if at least ``SHARE`` of the streams' time is in stalls. ``good``: requests whose times are possible."""
    streams = [request for request in good if request.itls]
    if not streams:
        return
    starts, ttfts = (np.array([getattr(request, name) for request in streams]) for name in ("start", "ttft"))
    gaps = np.concatenate([request.itls for request in streams])
    long = gaps >= LONG_S
    if not long.any():
        return
    ends = np.concatenate([request.start + request.ttft + np.cumsum(request.itls) for request in streams])[long]
    waits = gaps[long]
    reading = Reading(starts, ttfts)
    usual_s, long_s = np.percentile(ttfts / np.maximum(1.0, reading.mean(starts, starts + ttfts)), [50, 95])
    firsts = np.sort(starts + ttfts)
    read = np.searchsorted(firsts, ends) - np.searchsorted(firsts, ends - waits)
    explained = FACTOR * (gaps.mean() + np.maximum(read * usual_s, reading.mean(ends - waits, ends) * long_s))
    stalled = waits > explained
    share = float(waits[stalled].sum() / gaps.sum())
    if share >= SHARE:
        sentences = [
            f"Streams stood still for {share:.1%} of their time, up to {waits[stalled].max():.1f} s at once. A stream gets a chunk every "
            f"{gaps.mean():.3f} s on average, and a prompt takes {usual_s:.3f} s, so the workload does not explain it."
        ]
        if len(found := stops(good)):
            sentences.append(
                f"In all, no request received a token for {found.sum():.1f} of {span_of(good):.1f} s (stops: {len(found)}, the longest "
                f"{found.max():.1f} s; prompts may explain some)."
            )
        yield reason(STALLED, " ".join([*sentences, AGAIN]))


def stops(good: Sequence[Request]) -> np.ndarray:
    """Return the times in which requests were in flight and none received a token.

    A stop is longer than ``STOP_S`` and than the median time between two chunks of a stream, because streams of one wave get their chunks
    almost together. The time before the first token of the load does not count. The time in which the server reads long prompts does.

    Args:
        good: requests whose times are possible.

    Returns:
        Lengths in seconds, in order of time; shape (stops,).
    """
    gaps = [gap for request in good for gap in request.itls]
    if not gaps:
        return np.empty(0)
    chunks = [request.start + np.cumsum([request.ttft, *request.itls]) for request in good]
    starts, lasts = np.array([request.start for request in good]), np.array([moments[-1] for moments in chunks])
    arrived, limit = np.sort(np.concatenate(chunks)), max(STOP_S, float(np.median(gaps)))
    found = []
    for at in np.flatnonzero(np.diff(arrived) > limit):
        begin, end = arrived[at], arrived[at + 1]
        in_flight = starts[(starts < end) & (lasts > begin)]
        if len(in_flight):
            found.append(end - max(begin, in_flight.min()))
    return np.array([seconds for seconds in found if seconds > limit])


class Reading:
    """Requests that wait for their first token, over time."""

    def __init__(self, starts: np.ndarray, ttfts: np.ndarray):
        """Count the requests that started at ``starts`` and waited ``ttfts`` seconds."""
        moments = np.concatenate([starts, starts + ttfts])
        order = np.argsort(moments, kind="stable")
        self._moments = moments[order]
        counts = np.cumsum(np.concatenate([np.ones(len(starts)), -np.ones(len(ttfts))])[order])
        self._sums = np.concatenate([[0.0], np.cumsum(np.diff(self._moments) * counts[:-1])])

    def mean(self, begins: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """Return the mean number of waiting requests between each of ``begins`` and the same entry of ``ends``."""
        sums = np.interp(ends, self._moments, self._sums) - np.interp(begins, self._moments, self._sums)
        return np.asarray(sums / np.maximum(ends - begins, 1e-9))
