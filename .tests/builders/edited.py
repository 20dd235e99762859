"""Edits of a real result that make it wrong, each with totals that agree with its requests."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

from builders.requests import CORES, as_client, raw_of, samples
from servemark.measurement.raw import Request
from servemark.measurement.statistics import span_of


def made(requests: Sequence[Request], duration_s: float | None = None, processes: int = 1, cores: Callable[[float], float] | None = None):
    """Return a result of these requests as servemark merges it: one entry for each process, which has each n-th request."""
    whole = raw_of(requests, span_of(requests) if duration_s is None else duration_s)
    parts = [requests[number::processes] for number in range(processes)]
    shares = [raw_of(part, span_of(part) if processes > 1 else whole.duration_s) for part in parts]
    clients = tuple(
        as_client(share, cpu=samples(min(one.start for one in share.requests), share.duration_s, cores or (lambda _: CORES)))
        for share in shares
    )
    return replace(whole, requests=tuple(one for part in parts for one in part), clients=clients)


def streamed(request: Request, arrivals: Sequence[float], start: float | None = None) -> Request:
    """Return the request with chunks at these moments."""
    start = request.start if start is None else start
    gaps = tuple(later - earlier for earlier, later in pairwise(arrivals))
    ttft = arrivals[0] - start
    return replace(request, start=start, ttft=ttft, itls=gaps, latency=ttft + sum(gaps))


def arrivals(request: Request) -> list[float]:
    """Return the moments of a request's chunks."""
    found = [request.start + request.ttft]
    for gap in request.itls:
        found.append(found[-1] + gap)
    return found


def unstreamed(request: Request) -> Request:
    return streamed(request, [request.start + request.latency])


def slowed(request: Request, seconds: float) -> Request:
    """Return the request with its last chunk later."""
    *first, last = arrivals(request)
    return streamed(request, [*first, last + seconds])


def thinned(request: Request, every: int = 2) -> Request:
    """Return the request without each ``every``-th chunk; the others keep their times."""
    moments = arrivals(request)
    return streamed(request, [moment for number, moment in enumerate(moments[:-1]) if number % every != 1] + moments[-1:])


def frozen(requests: Sequence[Request], *stops: tuple[float, float], some: Callable[[int], bool] = lambda _: True) -> list[Request]:
    """Return the requests of a load that stood still: ``stops`` are (share of its time, seconds). ``some``: streams that did, by number.

    What follows a stop is later, whole requests included: a slot's next request waits for the one before.
    """
    begin, span = min(one.start for one in requests), span_of(requests)
    moments = [(begin + share * span, seconds) for share, seconds in stops]

    def later(moment: float) -> float:
        return moment + sum(seconds for at, seconds in moments if moment > at)

    return [
        streamed(one, [later(moment) for moment in arrivals(one)], later(one.start)) if some(number) else one
        for number, one in enumerate(requests)
    ]


def moved(request: Request, seconds: float) -> Request:
    return replace(request, start=request.start + seconds)


def in_slots(requests: Sequence[Request], slots: int) -> list[Request]:
    """Return the requests sent with this number of slots, each with its own times."""
    free = [min(one.start for one in requests)] * slots
    return [replace(one, start=heapq.heapreplace(free, free[0] + one.latency + 1e-4)) for one in requests]


def with_ttft(request: Request, factor: float) -> Request:
    return replace(request, ttft=request.ttft * factor, latency=request.ttft * factor + sum(request.itls))


def some_frozen(requests: Sequence[Request], slots: int, share: float, seconds: float, every: int = 2) -> list[Request]:
    """Return a load in which each ``every``-th stream of one moment stood still; a slot's next request waits for the one before."""
    moment = min(one.start for one in requests) + share * span_of(requests)
    stood = [one for one in requests if one.start + one.ttft < moment < one.start + one.latency][::every]
    slower = {id(one): streamed(one, [at + seconds if at > moment else at for at in arrivals(one)]) for one in stood}
    return in_slots(sorted((slower.get(id(one), one) for one in requests), key=lambda one: one.start), slots)


def paused(requests: Sequence[Request], share: float, seconds: float) -> list[Request]:
    """Return a load whose last requests were sent ``seconds`` after all others had ended."""
    ordered = sorted(requests, key=lambda one: one.start)
    first, rest = ordered[: int(share * len(ordered))], ordered[int(share * len(ordered)) :]
    late_s = max(one.start + one.latency for one in first) + seconds - rest[0].start
    return [*first, *(moved(one, late_s) for one in rest)]
