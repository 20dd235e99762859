"""The steady state of a load point: its results without the start burst and without the last requests.

All C slots of a closed loop send their first request at once, so the first C prompts queue behind each other as no later ones do. At the
end slots find no more work, and the load shrinks. docs/explanation/steady-state.md has the definitions, their sources and their accuracy.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from servemark.measurement.arrivals import Arrivals
from servemark.measurement.in_flight import InFlight
from servemark.measurement.raw import RawResult, Request, Results
from servemark.measurement.statistics import MS, tpots
from servemark.records import LoadPoint, Steady, SteadyLatency

CONFIDENCE = 0.95
"""Of the interval of a percentile, which decides how many values it needs."""
PERCENTILES = (50, 95, 99)


@dataclass(frozen=True)
class Course:
    """How the load went; the names are those of ``records.Measurement``. Exactly one of the first two is None."""

    steady: Steady | None
    steady_missing: str | None
    in_flight_mean: float
    in_flight_most: int
    peak_output_throughput: float
    tokens_per_chunk: float | None


@dataclass(frozen=True)
class Span:
    """The steady state and the windows of its throughput, seconds on the client's clock.

    ``begins[i]`` to ``ends[i]`` is window i. ``cycles``: requests of each slot in a window; None for a request rate, as is ``slots``.
    """

    begin: float
    end: float
    begins: np.ndarray
    ends: np.ndarray
    cycles: int | None = None
    slots: int | None = None


def course(raw: RawResult, load: LoadPoint) -> Course | None:
    """Return the course of a load whose times are possible; None if no request completed."""
    good = raw.good
    if not good:
        return None
    flight, arrivals = InFlight.of(good), Arrivals.of(good)
    span = find(raw, load)
    found = _results(good, span, flight, arrivals) if isinstance(span, Span) else span
    return Course(
        steady=found if isinstance(found, Steady) else None,
        steady_missing=found if isinstance(found, str) else None,
        in_flight_mean=flight.mean() if flight.moments[-1] > flight.moments[0] else float(flight.most),
        in_flight_most=flight.most,
        peak_output_throughput=arrivals.peak(),
        tokens_per_chunk=tokens_per_chunk(good),
    )


def tokens_per_chunk(good: Sequence[Request]) -> float | None:
    """Return the mean number of tokens in a chunk after the first one; None if no request has a second chunk.

    The mean ITL divided by it is the mean time per output token after the first.
    """
    chunks = sum(len(request.itls) for request in good)
    return sum(request.output_tokens - 1 for request in good if request.itls) / chunks if chunks else None


def least_per_slot(limit: float, good: Sequence[Request]) -> float:
    """Return the requests that each slot needs, if ``limit`` are enough for outputs of one length.

    The steady state begins when the longest of the first outputs is complete. In this time other slots complete ``longest / mean``
    requests, so the first of the ``limit`` requests counts as that many, in whole requests.
    """
    outputs = [request.output_tokens for request in good]
    return limit - 1 + max(1, max(outputs) * len(outputs) // sum(outputs)) if any(outputs) else limit


def find(raw: RawResult, load: LoadPoint) -> Span | str:
    """Return the steady state of a load with completed requests, or why it has none."""
    if load.request_rate is not None and math.isfinite(load.request_rate):
        return _open_loop(raw.good)
    if load.concurrency is None:
        return "All requests were sent at once, so the load had no steady state."
    return _closed_loop(raw.clients or (raw,), load.concurrency)


def _open_loop(good: Sequence[Request]) -> Span | str:
    """Return the time without one mean request duration at each end."""
    starts = np.array([request.start for request in good])
    latencies = np.array([request.latency for request in good])
    begin, end = float(starts.min() + latencies.mean()), float((starts + latencies).max() - latencies.mean())
    if not end > begin:
        return f"The load was shorter than two mean request durations ({latencies.mean():.1f} s each). Raise `requests`."
    return Span(begin, end, np.array([begin]), np.array([end]))


def _closed_loop(clients: Sequence[Results], concurrency: int) -> Span | str:
    """Return the time from the end of every slot's first request until a slot finds no more work.

    vLLM's client lists requests in the order in which they get a slot (a semaphore in ``benchmark`` of vllm/benchmarks/serve.py). So the
    first ``slots`` of a process are the first requests of its slots, also if they start one after another.

    The windows of the throughput are whole cycles of the slots. A window lasts from the start of request i to that of request ``i + m *
    concurrency``; in it, each slot sends ``m`` requests on average. Windows begin once every slot is busy and one has sent its second
    request. They end at the last start or before.
    """
    begin, end, full, until, starts = -math.inf, math.inf, -math.inf, math.inf, []
    for number, client in enumerate(clients):
        slots = concurrency // len(clients) + (number < concurrency % len(clients))
        firsts, others = client.requests[:slots], client.requests[slots:]
        if not firsts or not others:
            return f"A client process sent {len(firsts)} requests over {slots} slots, so some slot sent no second one. Raise `requests`."
        last = max(request.start for request in client.requests)
        begin = max(begin, *(request.start + request.latency for request in firsts))
        end = min(end, min(at for request in client.requests if (at := request.start + request.latency) >= last))
        full = max(full, min(request.start for request in others), *(request.start for request in firsts))
        until = min(until, last)
        starts += [request.start for request in client.requests]
    moments = np.sort(np.array([start for start in starts if full <= start <= until]))
    cycles = (len(moments) - 1) // concurrency
    if not end > begin:
        return "A slot found no more work before every slot had finished its first request. Raise `requests`."
    if cycles < 1:
        return f"{len(moments)} requests started while every slot was busy; more than {concurrency} are needed. Raise `requests`."
    return Span(begin, end, moments[: -cycles * concurrency], moments[cycles * concurrency :], cycles, concurrency)


def _results(good: Sequence[Request], span: Span, flight: InFlight, arrivals: Arrivals) -> Steady | str:
    seconds = float((span.ends - span.begins).sum())
    if not seconds > 0:
        return "The requests of the steady state started at the same moment."
    output = float(arrivals.output_tokens(span.begins, span.ends).sum()) / seconds
    whole = output + float(arrivals.input_tokens(span.begins, span.ends).sum()) / seconds
    lasts = np.sort(np.array([request.start + request.latency for request in good]))
    # A window of whole cycles has the same number of starts wherever it begins. Ends would depend on where it cuts the cycle.
    marks = lasts if span.cycles is None else np.sort(np.array([request.start for request in good]))
    counted = np.searchsorted(marks, span.ends, side="right") - np.searchsorted(marks, span.begins, side="right")
    inside = [request for request in good if span.begin <= request.start < span.end]
    waves = Waves.of(inside, span.slots) if span.slots and inside else Waves(None, True)
    first = float(flight.moments[0])
    return Steady(
        begin_s=span.begin - first,
        end_s=span.end - first,
        requests=len(inside),
        cycles=span.cycles,
        request_throughput=float(counted.sum()) / seconds,
        output_throughput=output,
        total_throughput=whole,
        in_flight=flight.mean(span.begin, span.end),
        waves=waves.share,
        ttft_ms=_latency([request.ttft for request in inside], waves.independent),
        tpot_ms=_latency(tpots(inside), waves.independent),
        itl_ms=_latency(_gaps(good, span), ranges=False),
        e2el_ms=_latency([request.latency for request in inside], waves.independent),
        too_few=_too_few(len(inside)),
    )


@dataclass(frozen=True)
class Waves:
    """How much the slots start their requests together: ``share`` 0 (not at all) to 1; None for fewer than two requests in a cycle.

    ``independent``: whether independent starts would explain it.
    """

    share: float | None
    independent: bool

    @classmethod
    def of(cls, requests: Sequence[Request], slots: int) -> "Waves":
        """Return the waves of one or more requests that start in the steady state, ``slots`` of them in each cycle.

        Each cycle has the mean resultant length R of its starts in the phase of the mean request duration. With n independent starts n R**2
        is exponentially distributed with mean 1 (Rayleigh's test; Mardia and Jupp, Directional Statistics (2000), 6.3.1). So its sum over g
        cycles has a gamma distribution of shape g. The share is the root of the mean R**2 without the 1 / n that chance adds.
        """
        starts = np.sort(np.array([request.start for request in requests]))
        mean = math.fsum(request.latency for request in requests) / len(requests)
        size = min(slots, len(starts))
        cycles = (starts[: len(starts) // size * size].reshape(-1, size) - starts[0]) / mean if mean > 0 else np.zeros((1, size))
        squares = np.abs(np.exp(2j * np.pi * cycles).mean(axis=1)) ** 2
        total = size * float(squares.sum())
        # The chance that a gamma variable of shape g exceeds the total is that of fewer than g events of a Poisson process.
        terms = [number * math.log(total) - total - math.lgamma(number + 1) if total else -math.inf for number in range(1, len(squares))]
        chance = math.exp(-total) + math.fsum(map(math.exp, terms))
        share = math.sqrt(max(0.0, (size * float(squares.mean()) - 1) / (size - 1))) if size > 1 else None
        return cls(share, chance >= 1 - CONFIDENCE)


def _gaps(good: Sequence[Request], span: Span) -> np.ndarray:
    """Return the gaps between chunks that end in the steady state, whenever their request started."""
    found = [np.empty(0)]
    for request in good:
        gaps = np.array(request.itls)
        at = request.start + request.ttft + np.cumsum(gaps)
        found.append(gaps[(at > span.begin) & (at <= span.end)])
    return np.concatenate(found)


def needed(percentile: int) -> int:
    """Return the number of values from which on a percentile has a confidence interval: 6 for p50, 72 for p95, 368 for p99.

    With fewer, the percentile may lie beyond the largest (or smallest) value with a probability above (1 - ``CONFIDENCE``) / 2, whatever
    the distribution: all n values lie below the p-quantile with probability p**n. Source: David and Nagaraja, Order Statistics (2003), 7.1.
    """
    inner = max(percentile, 100 - percentile) / 100
    return math.ceil(math.log((1 - CONFIDENCE) / 2) / math.log(inner))


def interval(values: np.ndarray, percentile: int) -> tuple[float, float] | None:
    """Return the confidence interval of a percentile from order statistics; None if there are fewer values than ``needed``.

    The number of values below the p-quantile is binomial (n, p), whatever the distribution. The values must be independent.
    """
    count, p = len(values), percentile / 100
    if count < needed(percentile):
        return None
    number = np.arange(1, count + 1)
    # log of the binomial probabilities of 0 to count, by the ratio of neighbours.
    logs = count * math.log(1 - p) + np.concatenate([[0.0], np.cumsum(np.log((count - number + 1) / number * p / (1 - p)))])
    below = np.cumsum(np.exp(logs))
    tail = (1 - CONFIDENCE) / 2
    low, high = int(np.searchsorted(below, tail)), int(np.searchsorted(below, 1 - tail)) + 1
    ordered = np.sort(values)
    return float(ordered[max(low, 1) - 1]), float(ordered[min(high, count) - 1])


def _latency(seconds: Sequence[float] | np.ndarray, ranges: bool) -> SteadyLatency | None:
    values = MS * np.asarray(seconds, dtype=np.float64)
    if len(values) < needed(50):
        return None
    known = {f"p{p}": float(np.percentile(values, p)) for p in PERCENTILES if len(values) >= needed(p)}
    return SteadyLatency(
        count=len(values),
        mean=float(values.mean()),
        std=float(values.std()),
        max=float(values.max()),
        p95_range=interval(values, 95) if ranges else None,
        **known,
    )


def _too_few(count: int) -> str | None:
    short = [f"p{p} needs {needed(p)}" for p in PERCENTILES if count < needed(p)]
    if not short:
        return None
    what = f"latencies need {needed(50)}" if count < needed(50) else ", ".join(short)
    return f"{count} requests start in the steady state; {what}."
