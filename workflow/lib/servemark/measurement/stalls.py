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
from servemark.records import Reason

STALLED = "stalled"
SHARE = 0.02
"""Share of the streams' time in stalls from which on a measurement is SUSPECT. Seen: 0."""
STOP_S = 0.25
"""A shorter time without any token is no stop of the server. Steps that read prompts took up to 0.22 s (four H200, docs/benchmarks)."""


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
        sentences = [f"Streams stood still for {share:.1%} of their time, up to {waits[stalled].max():.1f} s at once."]
        if len(found := stops(streams)):
            sentences.append(f"Stops of the whole server: {len(found)}, {found.sum():.1f} s together, the longest {found.max():.1f} s.")
        sentences.append(f"A stream gets a chunk every {gaps.mean():.3f} s on average, and a prompt takes {usual_s:.3f} s.")
        yield reason(STALLED, " ".join([*sentences, "So the workload does not explain it.", AGAIN]))


def stops(streams: Sequence[Request]) -> np.ndarray:
    """Return the times in seconds in which requests were in flight and none received a token.

    A stop is longer than ``STOP_S`` and than ``silence.FACTOR`` steps. ``streams``: requests with more than one chunk.
    """
    chunks = [request.start + np.cumsum([request.ttft, *request.itls]) for request in streams]
    arrived = np.sort(np.concatenate(chunks))
    step_s = sum(sum(request.itls) for request in streams) / max(1, sum(request.output_tokens - 1 for request in streams))
    waits, begins = np.diff(arrived), arrived[:-1]
    starts, ends = np.sort([request.start for request in streams]), np.sort([moments[-1] for moments in chunks])
    in_flight = np.searchsorted(starts, begins, side="right") - np.searchsorted(ends, begins, side="right")
    return waits[(waits > max(STOP_S, FACTOR * step_s)) & (in_flight > 0)]


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
