"""Laws that the requests of every real load obey, whatever the server: what breaks them is no measurement of this load.

Sources: vllm/benchmarks/lib/endpoint_request_func.py (the client's times), vllm/v1/engine/output_processor.py (``stream_interval``), 0.32.
Seen on real results: 13 closed loops and 3 request rates, on CPU and H200, one and four client processes, concurrency 1 to 512.

* A request ends with its last chunk: latency = TTFT + sum of gaps. Seen: exactly equal.
* A closed loop lasts from its first start to its last end. Seen: 0 to 16 ms longer where vLLM's own clock was used.
* No more than C requests are in flight. Seen: exactly C at most.
* While requests remain, a slot that becomes free gets the next one, so C are in flight. Seen: 0.954 to 1.000 C until the last start.
* Afterwards slots empty as fast as the lengths of the outputs allow. Seen: 0.94 to 1.00 of that.
* vLLM sends the first token at once, then a chunk for each ``stream-interval`` tokens, and the rest. A reader that is late gets several
  chunks as one. Seen: all chunks on H200 with an interval of 20; 0.89 to 1.00 of them elsewhere, 0.70 where tokens came in bursts.
* Two requests never take exactly the same times, which have a resolution of nanoseconds.
"""

from __future__ import annotations

import heapq
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from servemark.measurement.clients import FREE_WAIT_S
from servemark.measurement.in_flight import InFlight
from servemark.measurement.raw import RawResult, Request, Results
from servemark.measurement.reasons import reason
from servemark.measurement.statistics import span_of
from servemark.measurement.thresholds import Verdict
from servemark.records import LoadPoint, Reason

CLOCK_SLACK_S = 1e-6
"""Seconds. perf_counter resolves nanoseconds; this allows for the rounding of sums only."""
OWN_CLOCK_S = 0.05
"""Seconds. vLLM's own duration of a closed loop is that much longer than its requests at most (seen: 0.4 to 16 ms)."""
SHARE = 0.01
"""Share of the requests that may be odd: p99, the finest percentile in a record, leaves out the same share."""
HALF = 0.5
"""From this share on, even the median is not that of the configured load."""
MANY_GAPS = 8
"""Gaps whose equality alone proves a copy. With fewer, the TTFT must be equal too: gaps of tokens that came at once are microseconds."""
SPOKEN = 8
"""Output tokens from which a text is expected: fewer may all be special tokens, or an incomplete character."""
LONG_DRAIN = 3.0
"""A request rate's last request may take this many times as long as the median (``FACTOR`` in measurement/silence.py)."""


def reasons(raw: RawResult, load: LoadPoint, limits: Verdict, options: Mapping[str, Any]) -> Iterator[Reason]:
    """Yield the laws that a measurement breaks, whose times must be possible. ``options``: the server's, as the ledger key has them."""
    good = raw.good
    if not good:
        return
    off = [abs(request.ttft + math.fsum(request.itls) - request.latency) for request in good]
    if max(off) > CLOCK_SLACK_S:
        many = sum(each > CLOCK_SLACK_S for each in off)
        yield reason("latency_differs", f"{many} of {len(good)} requests end up to {max(off):.6f} s before or after their last chunk.")
    yield from _stream_reasons(good, limits, options)
    if count := _copies(good):
        yield reason("requests_repeated", f"{count} requests have exactly the same times as another request.")
    # On the chat route a reasoning parser takes text out of the content, and the client keeps the content.
    if not (load.api == "chat" and options.get("reasoning-parser")):
        yield from _text_reasons(good)
    yield from _drain_reasons(raw, limits) if math.isfinite(load.request_rate or math.inf) else _closed_loop_reasons(raw, load, limits)
    yield from _limit_reasons(raw, load)


def due_chunks(tokens: int, options: Mapping[str, Any]) -> int:
    """Return the fewest chunks in which a server sends an output of one or more tokens to a reader that is never late.

    The first token is sent at once, the others when at least ``stream-interval`` wait. A step of speculative decoding gives up to
    ``num_speculative_tokens`` more.
    """
    per_chunk = _whole(options.get("stream-interval")) or 1
    per_chunk += _speculated(options)
    return 1 + math.ceil((tokens - 1) / per_chunk)


def _speculated(options: Mapping[str, Any]) -> int:
    given = options.get("speculative-config")
    try:
        config = json.loads(given) if isinstance(given, str) else given
    except ValueError:
        config = None
    nested = config.get("num_speculative_tokens") if isinstance(config, Mapping) else None
    return _whole(nested) or _whole(options.get("speculative-config.num_speculative_tokens")) or _whole(options.get("spec-tokens")) or 0


def _whole(value: Any) -> int | None:
    try:
        return max(0, int(value))
    except (TypeError, ValueError):
        return None


def _stream_reasons(good: Sequence[Request], limits: Verdict, options: Mapping[str, Any]) -> Iterator[Reason]:
    due = [due_chunks(request.output_tokens, options) if request.output_tokens else 1 for request in good]
    several = [len(request.itls) for request, chunks in zip(good, due, strict=True) if chunks > 1]
    whole = sum(gaps == 0 for gaps in several)
    if several and whole > SHARE * len(several):
        yield reason(
            "not_streamed",
            f"{whole} of {len(several)} outputs of several chunks came as one, so their TTFT is their latency and their TPOT is 0.",
            "INVALID" if whole >= HALF * len(several) else "SUSPECT",
        )
        return
    wanted = sum(due) - len(good)
    missing = sum(max(0, chunks - 1 - len(request.itls)) for request, chunks in zip(good, due, strict=True))
    if wanted and missing / wanted > limits.max_burst_fraction:
        detail = (
            f"{missing} of {wanted} chunks are missing ({missing / wanted:.0%}): their tokens came together with later ones. The server "
            "or the client was delayed, so the times between tokens include this delay."
        )
        yield reason("chunks_missing", detail)


def _copies(good: Sequence[Request]) -> int:
    """Return the number of requests whose times are a copy of another's, even if it started at another time."""
    times = [request.itls if len(request.itls) >= MANY_GAPS else (request.ttft, *request.itls) for request in good if request.itls]
    copies = len(times) - len(set(times))
    # One token each: the TTFTs alone. Those within a microsecond tell how many of 1000 may be equal by chance.
    ttfts = np.diff(np.sort([request.ttft for request in good if not request.itls]))
    equal, near = int((ttfts < 1e-10).sum()), int((ttfts < CLOCK_SLACK_S).sum())
    return copies + (equal if equal > 5 + (near - equal) / 100 else 0)


def _text_reasons(good: Sequence[Request]) -> Iterator[Reason]:
    texts = [request.characters for request in good if request.characters is not None and request.output_tokens >= SPOKEN]
    empty = texts.count(0)
    if empty > SHARE * len(texts):
        yield reason("no_text", f"{empty} of {len(texts)} outputs have no text, although the server counted their tokens.")


def _processes(raw: RawResult, load: LoadPoint) -> list[tuple[Results, int | None, str]]:
    """Return each client process, its share of the concurrency, and its name for a message."""
    parts: Sequence[Results] = raw.clients or (raw,)
    count = len(parts)
    names = [f" of client process {number} of {count}" if count > 1 else "" for number in range(1, count + 1)]
    if load.concurrency is None:
        return [(part, None, name) for part, name in zip(parts, names, strict=True)]
    whole, rest = divmod(load.concurrency, count)
    return [(part, whole + (number < rest), name) for number, (part, name) in enumerate(zip(parts, names, strict=True))]


def _limit_reasons(raw: RawResult, load: LoadPoint) -> Iterator[Reason]:
    for part, slots, whose in _processes(raw, load):
        if slots is not None and part.requests and (most := _most(part.requests)) > slots:
            yield reason("concurrency_exceeded", f"Up to {most} requests{whose} were in flight at once; {slots} were configured.")
            return


def _most(requests: Sequence[Request]) -> int:
    """Return the most requests in flight. A start within ``CLOCK_SLACK_S`` before an end comes after it: ends are rounded sums."""
    starts = np.sort([request.start for request in requests])
    ends = np.sort([request.start + request.latency - CLOCK_SLACK_S for request in requests])
    return int((np.arange(1, len(starts) + 1) - np.searchsorted(ends, starts, side="right")).max())


def _closed_loop_reasons(raw: RawResult, load: LoadPoint, limits: Verdict) -> Iterator[Reason]:
    for part, _, whose in [(raw, None, ""), *_processes(raw, load)]:
        # The end of a failed request may not be recorded (latency 0).
        if part.requests and all(request.latency > 0 for request in part.requests):
            over = part.duration_s - span_of(part.requests)
            if over > OWN_CLOCK_S + 1e-3 * part.duration_s:
                yield reason("duration_differs", f"The load{whose} took {part.duration_s:.2f} s, {over:.2f} s more than its requests span.")
                break
    for part, slots, whose in _processes(raw, load):
        if slots and len(part.requests) > slots and all(request.latency > 0 for request in part.requests):
            found = list(_empty_slots(part.requests, slots, load.ramp_up_s or 0.0, whose, limits))
            if found:
                yield found[0]
                return


def _empty_slots(requests: Sequence[Request], slots: int, ramp_up_s: float, whose: str, limits: Verdict) -> Iterator[Reason]:
    flight = InFlight.of(requests)
    begin, last, end = float(flight.moments[0]), max(request.start for request in requests), float(flight.moments[-1])
    free_s = FREE_WAIT_S * len(requests)  # what the client itself may take between two requests of a slot
    full_from = begin + ramp_up_s
    if last > full_from:
        kept = flight.mean(full_from, last) / slots
        if kept < limits.min_in_flight and (1 - kept) * slots * (last - full_from) > free_s:
            detail = f"{kept * slots:.1f} requests{whose} were in flight on average until the last one was sent; {slots} were configured."
            yield reason("concurrency_not_kept", detail, "INVALID" if kept < HALF else "SUSPECT")
    full = fullest(requests, slots)
    kept = flight.mean() / slots
    if kept < limits.min_in_flight * full and (full - kept) * slots * (end - begin) > free_s + slots * ramp_up_s / 2:
        detail = (
            f"{kept * slots:.1f} requests{whose} were in flight on average over the whole load; the lengths of its outputs allow "
            f"{full * slots:.1f}. The last {end - last:.1f} s passed after the last request was sent."
        )
        yield reason("concurrency_not_kept", detail, "SUSPECT")


def fullest(requests: Sequence[Request], slots: int) -> float:
    """Return the share of the slots that would be busy on average if a request took as long as it has tokens.

    Requests are placed in the order of their starts, each in the slot that becomes free first. The smaller share of two is returned: output
    tokens only, and all tokens.
    """
    ordered = sorted(requests, key=lambda request: request.start)
    shares = []
    for costs in ([one.output_tokens or 1 for one in ordered], [one.input_tokens + one.output_tokens or 1 for one in ordered]):
        free = [0.0] * slots
        for cost in costs:
            heapq.heapreplace(free, free[0] + cost)
        shares.append(sum(costs) / slots / max(free))
    return min(shares)


def _drain_reasons(raw: RawResult, limits: Verdict) -> Iterator[Reason]:
    """Yield ``slow_drain`` if a load by rate goes on for much longer than its last request should take."""
    latencies = [request.latency for request in raw.good]
    tokens = [request.output_tokens for request in raw.good]
    usual_s = float(np.median(latencies)) * max(tokens) / max(1.0, float(np.median(tokens)))
    drain_s = max(one.start + one.latency for one in raw.good) - max(one.start for one in raw.requests)
    if drain_s > max(LONG_DRAIN * usual_s, (1 - limits.min_in_flight) * raw.duration_s):
        detail = f"The load went on for {drain_s:.1f} s after its last request was sent; a request usually takes {usual_s:.1f} s."
        yield reason("slow_drain", detail)
