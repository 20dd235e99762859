"""Whether job, client or server stood still during a load: silences of all streams that the workload does not explain.

A suspended job (``scontrol suspend``, gang scheduling), a SIGSTOP and a frozen virtual machine leave the clock of the requests running. All
streams of a client process fall silent at once. Two observations show that the workload did not cause a silence:

* run_clients.py samples the CPU time of each client process once a second. Samples that stop together with the tokens show that the
  client's node, or the whole job, stood still.
* The workload repeats itself: each slot serves one request after another. So a silence that the workload causes comes back with each
  of them. One that is several times longer than all others does not.

Nothing in flight is no silence at a request rate: the next request is not due. In a closed loop a request is always due. The time before
the first token is compared with nothing, because a cold start happens once; only the samples judge it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from servemark.measurement.clients import window
from servemark.measurement.raw import Client, RawResult, Request, Results
from servemark.measurement.reason_row import rows
from servemark.measurement.statistics import span_of
from servemark.records import LoadPoint, Reason

LONG_S = 2.0
"""A shorter silence is not judged (``longest_silence_cpu`` in planning/advice.yaml), and two samples are due in this time."""
FACTOR = 3.0
"""A silence counts if it is this many times as long as the longest other wait (``longest_silence_gpu`` in planning/advice.yaml)."""
SHARE = 0.01
"""Share of the measurement that silences must take. It is the share that p99, the finest percentile in a record, leaves out."""
INTERRUPTED = "interrupted"
AGAIN = "To measure the point again, delete its record and run again."


ROWS = rows("SUSPECT",
    interrupted=("The job, the client or the server stood still during the point.",
        "Find out what stopped it (suspension, SIGSTOP, a frozen machine, compilation), and measure again."),
)  # fmt: skip


@dataclass(frozen=True)
class Silence:
    """Seconds on the client's clock between two tokens, of any stream, while a request was in flight.

    ``reading``: a request had no token yet, so the server may have read its prompt. ``writing``: one had tokens, and more were due.
    """

    begin: float
    end: float
    reading: bool = False
    writing: bool = False

    @property
    def seconds(self) -> float:
        """Length of the silence."""
        return self.end - self.begin


@dataclass(frozen=True)
class Found:
    """The silences of one client process that the workload does not explain, the longest first.

    ``stopped``: during some its CPU time was not sampled either. ``longest_other_s``: the longest wait for a token outside of them.
    """

    silences: tuple[Silence, ...] = ()
    stopped: bool = False
    longest_other_s: float = 0.0

    @property
    def seconds(self) -> float:
        """Length of all silences together."""
        return sum(silence.seconds for silence in self.silences)


def reasons(raw: RawResult, asked: LoadPoint) -> Iterator[Reason]:
    """Yield ``interrupted`` when unexplained silences of a result with sound times take a share of it that its results show."""
    closed_loop = asked.request_rate is None and len(raw.good) == len(raw.requests)
    processes: Sequence[Results] = raw.clients or (raw,)
    found = [find(process, closed_loop) for process in processes]
    most = max(found, key=lambda one: one.seconds)
    if most.seconds < SHARE * raw.duration_s:
        return
    whose = f" of client process {found.index(most) + 1} of {len(found)}" if len(found) > 1 else ""
    longest, *others = most.silences
    several = f" in {1 + len(others)} silences, the longest one {longest.seconds:.1f} s" if others else ""
    why = (
        "The client's CPU time was not sampled in that time either, so its node or the whole job stood still."
        if most.stopped
        else f"Other waits for a token took {max(most.longest_other_s, LONG_S / FACTOR):.1f} s or less, so the workload does not "
        "explain it."
    )
    detail = (
        f"No stream{whose} got a token for {most.seconds:.1f} s of {raw.duration_s:.1f} s "
        f"({most.seconds / raw.duration_s:.0%}){several}. {why} {AGAIN}"
    )
    yield ROWS[INTERRUPTED].found(detail)


def find(process: Results, closed_loop: bool) -> Found:
    """Return the unexplained silences of one client process. ``closed_loop``: a request was due at any time."""
    good = process.good
    if not good:
        return Found()
    stopped = _stopped(process)
    begins, ends = _waits(good)
    rest = [silence for silence in _silences(good, closed_loop) if not _overlap(silence, stopped)]
    limit = _recurring(good)
    # A step without prompts is compared with such steps alone: neither prompts nor what they hold up explain it.
    with_prompts = [silence for silence in rest if silence.reading]
    plain = _outstanding([s for s in rest if not s.reading], good, (begins, ends), (*stopped, *with_prompts), limit)
    odd = plain + _outstanding(with_prompts, good, (begins, ends), (*stopped, *plain), limit)
    silences = sorted((*stopped, *(s for s in odd if s.seconds >= LONG_S)), key=lambda s: -s.seconds)
    return Found(tuple(silences), bool(stopped), _longest(begins, ends, silences))


def _stopped(process: Results) -> tuple[Silence, ...]:
    """Return times in which the process neither sent a request nor got a token, and was not sampled."""
    samples = process.cpu if isinstance(process, Client) else ()
    span = window(process)
    if not samples or span is None:
        return ()
    moments = [span[0], *(moment for moment, _ in samples), span[1]]
    events = np.sort(np.concatenate([[request.start for request in process.good], *map(_arrivals, process.good)]))
    events = np.concatenate([[span[0]], events, [span[1]]])
    found = []
    for at in np.flatnonzero(np.diff(events) >= LONG_S):
        for left, right in pairwise(moments):
            begin, end = max(left, float(events[at])), min(right, float(events[at + 1]))
            if end - begin >= LONG_S:
                found.append(Silence(begin, end))
    return tuple(found)


def _arrivals(request: Request) -> np.ndarray:
    return request.start + np.cumsum([request.ttft, *request.itls])


def _waits(good: Sequence[Request]) -> tuple[np.ndarray, np.ndarray]:
    """Begin and end of each stream's waits between two tokens, of those that can decide anything."""
    arrivals = [_arrivals(request) for request in good]
    begins = np.concatenate([moments[:-1] for moments in arrivals])
    ends = np.concatenate([moments[1:] for moments in arrivals])
    decisive = ends - begins >= LONG_S / FACTOR
    return begins[decisive], ends[decisive]


def _silences(good: Sequence[Request], closed_loop: bool) -> list[Silence]:
    """Return silences after the first token that can decide anything, the longest first."""
    arrivals = [_arrivals(request) for request in good]
    starts = np.array([request.start for request in good])
    firsts, lasts = (np.array([moments[which] for moments in arrivals]) for which in (0, -1))
    moments = np.sort(np.concatenate(arrivals))
    found = []
    for at in np.flatnonzero(np.diff(moments) >= LONG_S / FACTOR):
        begin, end = float(moments[at]), float(moments[at + 1])
        # No token arrived in between, so each request that was in flight at any time was so until the end.
        in_flight = (starts < end) & (lasts > begin)
        if not closed_loop:
            begin = max(begin, float(starts[in_flight].min()))
        if end - begin >= LONG_S / FACTOR:
            reading, writing = bool((in_flight & (firsts >= end)).any()), bool((in_flight & (firsts <= begin)).any())
            found.append(Silence(begin, end, reading, writing))
    return sorted(found, key=lambda silence: -silence.seconds)


def _recurring(good: Sequence[Request]) -> int:
    """Return the largest number of silences that may count as interruptions: fewer than the requests of a slot (Little's law)."""
    span_s = span_of(good)
    in_flight = sum(request.latency for request in good) / span_s if span_s > 0 else 1.0
    return max(1, int(len(good) / max(1.0, in_flight)) - 2)


def _outstanding(
    silences: Sequence[Silence], good: Sequence[Request], waits: tuple[np.ndarray, np.ndarray], others: Sequence[Silence], limit: int
) -> list[Silence]:
    """Return the longest ``silences``, as many as possible, that all exceed ``FACTOR`` times the longest other wait.

    ``silences`` come the longest first, ``waits`` from :func:`_waits`. Waits during ``others``, of another cause, explain nothing.
    """
    for count in range(min(limit, len(silences)), 0, -1):
        taken, rest = silences[:count], silences[count:]
        explained_s = _longest(*waits, (*taken, *others))
        if taken[-1].reading:
            explained_s = max(explained_s, rest[0].seconds if rest else 0.0)
        if any(not silence.writing for silence in taken if silence.reading):
            explained_s = max(explained_s, _first_token_s(good, (*taken, *others)))
        if taken[-1].seconds > FACTOR * explained_s:
            return list(taken)
    return []


def _first_token_s(good: Sequence[Request], apart: Sequence[Silence]) -> float:
    """Return the median TTFT outside of some silences; without such a request nothing can be compared, so it explains everything."""
    outside = [r.ttft for r in good if not _overlap(Silence(r.start, r.start + r.ttft), apart)]
    return float(np.median(outside)) if outside else np.inf


def _longest(begins: np.ndarray, ends: np.ndarray, apart: Sequence[Silence]) -> float:
    """Return the longest of these waits outside of some silences; 0 without one."""
    outside = np.ones(len(begins), dtype=bool)
    for silence in apart:
        outside &= (ends <= silence.begin) | (begins >= silence.end)
    return float((ends - begins)[outside].max(initial=0.0))


def _overlap(one: Silence, others: Sequence[Silence]) -> bool:
    return any(one.begin < other.end and other.begin < one.end for other in others)
