"""Requests of a client, a point and limits, for verdicts."""

from __future__ import annotations

from dataclasses import replace

from builders.loads import load
from servemark.measurement.raw import Client, RawResult, Request
from servemark.measurement.thresholds import Verdict
from servemark.measurement.verdict import ServerFacts


def thresholds(**changes):
    return Verdict(**{"min_requests_per_slot": 2.0, "input_tokens_tolerance": 0.01, **changes})


FINE = ServerFacts(same_process=True, client_exit_code=0)


def point(**changes):
    return load(**{"name": "chat-c2-r1", "concurrency": 2, "input_tokens": 10, "output_tokens": 3, **changes})


def request(number=0, **changes):
    good = Request(
        ok=True,
        input_tokens=10,
        output_tokens=3,
        ttft=0.2,
        itls=(0.1, 0.1),
        latency=0.4,
        start=100.0 + number,
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


def codes(judgement, severity=None):
    return {r.code for r in judgement.reasons if severity in (None, r.severity)}


def as_client(raw, **changes) -> Client:
    said = {name: value for name, value in vars(raw).items() if name not in ("clients", "clock")}
    return Client(**(said | changes))
