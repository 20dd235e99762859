"""Whether job, client or server was paused during a load: silences of all streams that the workload does not explain.

A silence is a time in which no stream of a client process gets a token. A suspended job (``scontrol suspend``, gang scheduling), a SIGSTOP
or a frozen virtual machine makes all streams silent at once, and the clock of the requests runs on. Two observations show that the workload
did not cause a silence:

* client_server.py samples the CPU time of each client process once a second. If the samples stop together with the tokens, the client's
  node or the whole job was paused.
* The workload repeats itself: each slot serves one request after another. So a silence that the workload causes recurs with each request. A
  silence that is several times longer than all others does not recur.

At a request rate, a time without requests in flight is no silence: the next request is not due. In a closed loop a request is always due.
Only the samples judge the time before the first token: a cold start happens once, so there is nothing to compare it with.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from servemark.measurement.clients import window
from servemark.measurement.raw import Client, RawResult, Request, Results
from servemark.measurement.reasons import AGAIN, reason
from servemark.measurement.statistics import span_of
from servemark.records import LoadPoint, Reason

LONG_S = 2.0
"""Shorter silences do not count (``longest_silence_cpu`` in planning/advice.yaml). Two samples are due in this time."""
FACTOR = 3.0
"""A silence counts if it is this many times as long as the longest other wait (``longest_silence_gpu`` in planning/advice.yaml)."""
SHARE = 0.01
"""Share of the measurement that silences must take. p99, the finest percentile in a record, leaves out the same share."""
INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class Silence:
    """Begin and end on the client's clock, seconds: no stream got a token in between, although a request was in flight.

    ``reading``: a request had no token yet, so the server may have been reading its prompt. ``writing``: one had tokens, and more were due.
    """

    begin: float
    end: float
    reading: bool = False
    writing: bool = False

    @property
    def seconds(self) -> float:
        """Length of the silence."""
        return self.end - self.begin

    def overlaps(self, others: Sequence[Silence]) -> bool:
        """Return whether it shares time with any of ``others``."""
        return any(self.begin < other.end and other.begin < self.end for other in others)


@dataclass(frozen=True)
class Found:
    """The silences of one client process that the workload does not explain, the longest first.

    ``stopped``: its CPU time was not sampled during some of them. ``longest_other_s``: the longest wait for a token outside of them.
    """

    silences: tuple[Silence, ...] = ()
    stopped: bool = False
    longest_other_s: float = 0.0

    @property
    def seconds(self) -> float:
        """Length of all silences together."""
        return sum(silence.seconds for silence in self.silences)


def reasons(raw: RawResult, load: LoadPoint) -> Iterator[Reason]:
    """Yield ``interrupted`` if unexplained silences take at least ``SHARE`` of a measurement, whose times must be possible."""
    closed_loop = load.request_rate is None and len(raw.good) == len(raw.requests)
    found = [find(process, closed_loop) for process in raw.clients or (raw,)]
    most = max(found, key=lambda one: one.seconds)
    if most.seconds < SHARE * raw.duration_s:
        return
    whose = f" of client process {found.index(most) + 1} of {len(found)}" if len(found) > 1 else ""
    longest, *others = most.silences
    several = f" in {1 + len(others)} silences, the longest one {longest.seconds:.1f} s" if others else ""
    other_s = max(most.longest_other_s, LONG_S / FACTOR)
    why = f"Other waits for a token took {other_s:.1f} s or less, so the workload does not explain it."
    if most.stopped:
        why = "The client's CPU time was not sampled in that time either, so its node or the whole job was paused."
    share = f"{most.seconds:.1f} s of {raw.duration_s:.1f} s ({most.seconds / raw.duration_s:.0%})"
    yield reason(INTERRUPTED, f"No stream{whose} got a token for {share}{several}. {why} {AGAIN}")


def find(process: Results, closed_loop: bool) -> Found:
    """Return the unexplained silences of one client process. ``closed_loop``: a request was due at any time."""
    good = process.good
    if not good:
        return Found()
    arrivals = [request.start + np.cumsum([request.ttft, *request.itls]) for request in good]
    waits = np.concatenate([np.stack([moments[:-1], moments[1:]], axis=1) for moments in arrivals])
    waits = waits[np.diff(waits).ravel() >= LONG_S / FACTOR]
    stopped = _stopped(process, arrivals)
    rest = [silence for silence in _silences(good, arrivals, closed_loop) if not silence.overlaps(stopped)]
    # Fewer than the requests of a slot: a silence that recurs with each request is the workload's own.
    span_s = span_of(good)
    in_flight = sum(request.latency for request in good) / span_s if span_s > 0 else 1.0  # Little's law
    limit = max(1, int(len(good) / max(1.0, in_flight)) - 2)
    # A silence without unread prompts is compared with such silences only: prompts, and the delays that they cause, do not explain it.
    with_prompts = [silence for silence in rest if silence.reading]
    plain = _outstanding([silence for silence in rest if not silence.reading], good, waits, (*stopped, *with_prompts), limit)
    odd = plain + _outstanding(with_prompts, good, waits, (*stopped, *plain), limit)
    silences = sorted((*stopped, *(silence for silence in odd if silence.seconds >= LONG_S)), key=lambda silence: -silence.seconds)
    return Found(tuple(silences), bool(stopped), _longest(waits, silences))


def _stopped(process: Results, arrivals: Sequence[np.ndarray]) -> tuple[Silence, ...]:
    """Return times in which the process neither sent a request nor got a token, and was not sampled."""
    samples = process.cpu if isinstance(process, Client) else ()
    span = window(process)
    if not samples or span is None:
        return ()
    moments = [span[0], *(moment for moment, _ in samples), span[1]]
    events = np.sort(np.concatenate([[request.start for request in process.good], *arrivals]))
    events = np.concatenate([[span[0]], events, [span[1]]])
    found = []
    for at in np.flatnonzero(np.diff(events) >= LONG_S):
        near = slice(max(0, bisect_left(moments, events[at]) - 1), bisect_left(moments, events[at + 1]) + 1)
        for left, right in pairwise(moments[near]):
            begin, end = max(left, float(events[at])), min(right, float(events[at + 1]))
            if end - begin >= LONG_S:
                found.append(Silence(begin, end))
    return tuple(found)


def _silences(good: Sequence[Request], arrivals: Sequence[np.ndarray], closed_loop: bool) -> list[Silence]:
    """Return silences after the first token that are long enough to matter, the longest first."""
    starts = np.array([request.start for request in good])
    firsts, lasts = (np.array([moments[which] for moments in arrivals]) for which in (0, -1))
    moments = np.sort(np.concatenate(arrivals))
    found = []
    for at in np.flatnonzero(np.diff(moments) >= LONG_S / FACTOR):
        begin, end = float(moments[at]), float(moments[at + 1])
        # No token arrived in between, so each request that was in flight at any time of it still was at the end.
        in_flight = (starts < end) & (lasts > begin)
        if not closed_loop:
            begin = max(begin, float(starts[in_flight].min()))
        if end - begin >= LONG_S / FACTOR:
            reading, writing = bool((in_flight & (firsts >= end)).any()), bool((in_flight & (firsts <= begin)).any())
            found.append(Silence(begin, end, reading, writing))
    return sorted(found, key=lambda silence: -silence.seconds)


def _outstanding(
    silences: Sequence[Silence], good: Sequence[Request], waits: np.ndarray, others: Sequence[Silence], limit: int
) -> list[Silence]:
    """Return the longest ``silences``, as many as possible, that all exceed ``FACTOR`` times the longest other wait.

    ``silences`` are sorted, the longest first. Waits during ``others``, which have another cause, explain nothing.
    """
    for count in range(min(limit, len(silences)), 0, -1):
        taken, rest = silences[:count], silences[count:]
        # The longest silence of the rest is a wait itself, so most counts need no further look at all waits.
        if rest and (rest[0].writing or taken[-1].reading) and taken[-1].seconds <= FACTOR * rest[0].seconds:
            continue
        apart = (*taken, *others)
        explained_s = _longest(waits, apart)
        if taken[-1].reading:
            explained_s = max(explained_s, rest[0].seconds if rest else 0.0)
        if any(not silence.writing for silence in taken if silence.reading):
            ttfts = [r.ttft for r in good if not Silence(r.start, r.start + r.ttft).overlaps(apart)]
            # Without a request outside of the silences nothing can be compared, so the wait for a first token explains everything.
            explained_s = max(explained_s, float(np.median(ttfts)) if ttfts else np.inf)
        if taken[-1].seconds > FACTOR * explained_s:
            return list(taken)
    return []


def _longest(waits: np.ndarray, apart: Sequence[Silence]) -> float:
    """Return the longest of these waits (begin and end) outside of some silences; 0 without one."""
    outside = np.ones(len(waits), dtype=bool)
    for silence in apart:
        outside &= (waits[:, 1] <= silence.begin) | (waits[:, 0] >= silence.end)
    return float(np.diff(waits[outside]).max(initial=0.0))
