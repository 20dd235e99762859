"""Requests of a client, a point and limits, for verdicts."""

from __future__ import annotations

from dataclasses import replace

from builders.loads import load
from servemark.measurement.raw import Client, RawResult, Request
from servemark.measurement.thresholds import stored
from servemark.measurement.verdict import ServerFacts


def thresholds(**changes):
    """Return thresholds, also ones that the configuration refuses."""
    return stored({"min_requests_per_slot": 2.0, "input_tokens_tolerance": 0.01, **changes})


FINE = ServerFacts(client_exit_code=0)


def point(**changes):
    return load(**{"name": "chat-c2-r1", "concurrency": 2, "input_tokens": 10, "output_tokens": 3, **changes})


EACH_S, EVERY_S = 2.498, 2.5


def request(number=0, **changes):
    """Return a request of three tokens, each in its own chunk. Two slots: 0 and 1 start at 100 s, the next two when these have ended.

    Four requests take 5 s.

    No two have the same gaps. Without ``itls`` the gaps fill the latency; without ``latency`` it ends with the last chunk.
    """
    ttft = changes.get("ttft", 0.2)
    count = changes.get("output_tokens", 3) - 1
    gaps = [(changes.get("latency", EACH_S) - ttft) / count] * count if count > 0 else []
    if count > 1:
        own = 1e-9 * (number + 1)
        gaps = [gaps[0] + own, *gaps[1:-1], gaps[-1] - own]
    itls = changes.get("itls", tuple(gaps))
    good = Request(
        ok=True,
        input_tokens=10,
        output_tokens=3,
        ttft=ttft,
        itls=itls,
        latency=ttft + sum(itls),
        start=100.0 + number // 2 * EVERY_S,
        error="",
    )
    return replace(good, **changes)


def raw_of(requests, duration=5.0, **changes):
    """Return a raw result whose totals agree with its requests."""
    good = [r for r in requests if r.ok]
    tokens_in, tokens_out = sum(r.input_tokens for r in good), sum(r.output_tokens for r in good)
    itls = [gap for r in good for gap in r.itls]
    totals = {
        "total_input_tokens": tokens_in,
        "total_output_tokens": tokens_out,
        "request_throughput": len(good) / duration if duration else 0.0,
        "output_throughput": tokens_out / duration if duration else 0.0,
        "total_token_throughput": (tokens_in + tokens_out) / duration if duration else 0.0,
        "mean_ttft_ms": 1000 * sum(r.ttft for r in good) / len(good) if good else 0.0,
        "mean_itl_ms": 1000 * sum(itls) / len(itls) if itls else 0.0,
    }
    raw = RawResult(
        num_prompts=len(requests),
        completed=len(good),
        failed=len(requests) - len(good),
        duration_s=duration,
        requests=tuple(requests),
        totals=totals,
    )
    return replace(raw, **changes)


CORES = 0.1


def samples(begin, seconds, cores=lambda _: CORES):
    """Return the CPU time of a client process, once a second; ``cores``: those that it uses in each second."""
    found, used = [], 5.0
    for second in range(int(seconds) + 1):
        found.append((begin + second, used))
        used += cores(second)
    return tuple(found)


def codes(judgement, severity=None):
    return {r.code for r in judgement.reasons if severity in (None, r.severity)}


def as_client(raw, **changes) -> Client:
    """Return a result as that of one process, whose CPU time is known."""
    said = {name: value for name, value in vars(raw).items() if name not in ("clients", "clock")}
    return Client(**(said | {"cpu": samples(min((one.start for one in raw.requests), default=0.0), raw.duration_s)} | changes))
