"""Compare what the servers counted themselves during a load point with what the client saw (:class:`servemark.records.ServerCounters`).

Warm-ups stand in the counters but not in the client's file. Their number and output length are known, so requests and tokens are compared
with them. Prefix hits and TTFTs of warm-ups are not known, so these are compared over the time after the last warm-up.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from servemark.measurement.in_flight import InFlight
from servemark.measurement.raw import RawResult
from servemark.measurement.reasons import reason
from servemark.records import EngineCounters, LoadPoint, Reason, ServerCounters

SLACK = 0.05
"""Part by which the client's mean TTFT may fall below the servers'. A server's clock starts later and stops earlier than the client's.
Only the requests in flight at the first scrape after the warm-ups may be counted by one side alone."""
LEAST_SHARE = 0.5
"""Share of the requests that must follow the first scrape after the warm-ups for a comparison of TTFTs."""
TOKENS_SLACK = 0.01
"""Part of the output tokens by which server and client may differ."""
SIGMAS = 5.0
"""Standard deviations above the mean that chance hits do not reach (1 in 3 million)."""
EACH = 10
"""Requests per engine from which each engine gets one: with a random choice of E engines, E exp(-10) of all loads leave one out."""


def sent_warmups(load: LoadPoint) -> int:
    """Return the number of warm-ups of all client processes. At a request rate each of several processes sends one at least."""
    return max(load.warmups, load.clients) if load.request_rate is not None and load.clients > 1 else load.warmups


def total(engines: Sequence[EngineCounters], name: str) -> float | None:
    """Return the sum of one counter over engines; None if no engine reports it."""
    values = [value for engine in engines if (value := getattr(engine, name)) is not None]
    return math.fsum(values) if values else None


def hit_share(counters: ServerCounters | None) -> float | None:
    """Return the share of the prompts' tokens that the prefix cache had, after the warm-ups; None: not reported."""
    engines = (counters.measured or counters.engines) if counters else ()
    hits, queries = total(engines, "prefix_hits"), total(engines, "prefix_queries")
    return None if hits is None or not queries else hits / queries


def acceptance_length(counters: ServerCounters | None) -> float | None:
    """Return the mean tokens of a step with speculated ones; None without speculative decoding.

    Formula: 1 + accepted tokens / drafts (vllm/v1/spec_decode/metrics.py, 0.32).
    """
    engines = (counters.measured or counters.engines) if counters else ()
    accepted, drafts = total(engines, "accepted_tokens"), total(engines, "drafts")
    return None if accepted is None or not drafts else 1 + accepted / drafts


def reasons(raw: RawResult, load: LoadPoint, counters: ServerCounters) -> Iterator[Reason]:
    """Yield why the servers' counters object to a measurement, whose times must be possible."""
    engines, measured = counters.engines, counters.measured or counters.engines
    if not engines or not raw.good:
        return
    sent, finished = len(raw.requests) + sent_warmups(load), int(total(engines, "finished") or 0)
    if finished > sent:
        detail = f"The servers finished {finished} requests; the client sent {sent}, warm-ups included. Somebody else used the servers."
        yield reason("foreign_requests", detail)
    elif len(raw.good) == len(raw.requests):
        yield from _token_reasons(raw, load, engines)
    if preempted := int(total(measured, "preemptions") or 0):
        yield reason("preempted", f"The servers preempted {preempted} requests and computed them again.")
    yield from _idle_reasons(raw, load, measured)
    yield from _prefix_reasons(len(raw.requests), load, counters)
    if counters.measured and finished <= sent:
        yield from _ttft_reasons(raw, counters.measured)


def _token_reasons(raw: RawResult, load: LoadPoint, engines: Sequence[EngineCounters]) -> Iterator[Reason]:
    # Each process warms up with the prompt of its first request.
    firsts = [part.requests[0] for part in raw.clients or (raw,) if part.requests]
    fixed = load.prompts.expected_output_tokens(0)
    outputs = [(first.expected or 0) if fixed is None else fixed for first in firsts]
    warm = round(sent_warmups(load) * sum(min(full, load.warmup_tokens or full) for full in outputs) / max(1, len(outputs)))
    counted, generated = sum(request.output_tokens for request in raw.good), int(total(engines, "generated") or 0)
    if abs(generated - warm - counted) > TOKENS_SLACK * counted:
        detail = f"The servers generated {generated} output tokens; the client counted {counted}, and warm-ups take {warm}."
        yield reason("server_tokens_differ", detail)


def _idle_reasons(raw: RawResult, load: LoadPoint, engines: Sequence[EngineCounters]) -> Iterator[Reason]:
    # Only the first replica gets requests if the client sends them to a replica.
    asked = [engine for engine in engines if load.ask == "endpoint" or engine.replica == engines[0].replica]
    idle = [f"{engine.replica}/{engine.engine}" for engine in asked if engine.finished == 0]
    # Fewer if the first scrape after the warm-ups came late.
    counted = total(asked, "finished") or 0
    if idle and counted >= EACH * len(asked) and InFlight.of(raw.good).mean() >= len(asked):
        yield reason("engine_idle", f"{len(idle)} of {len(asked)} engines got no request: {', '.join(idle[:8])}.")


def _prefix_reasons(requests: int, load: LoadPoint, counters: ServerCounters) -> Iterator[Reason]:
    """Yield ``prefix_hits_unwanted`` if the prefix cache had more tokens than prefix and chance explain.

    A random prompt of vLLM's client is a run of successive token numbers from a random one on (``generate_token_sequence`` in
    vllm/benchmarks/datasets, 0.32). So a prompt is in the cache, as a whole, if an earlier one began with the same number: in n of V cases
    with n earlier prompts and V numbers. n is at most the number of requests that the servers have finished since their start.
    """
    measured = counters.measured or counters.engines
    hits, vocabulary = total(measured, "prefix_hits"), counters.vocabulary
    if not hits or vocabulary is None or load.prompts.dataset != "random" or load.template_tokens is None:
        return
    warm = 0 if counters.measured else sent_warmups(load)
    prompts = requests + warm
    earlier = counters.finished_before + requests + sent_warmups(load)
    mean = prompts * min(1.0, earlier / vocabulary)
    # Warm-ups of one prompt may hit each other; without a scrape after them they stand among these hits.
    most = min(prompts, mean + SIGMAS * math.sqrt(mean) + 1 + warm)
    # A chat template begins each prompt with the same text, and may end it with another.
    wanted = prompts * (load.template_tokens + load.prefix_tokens)
    if hits > wanted + most * load.prompts.input_tokens:
        share = hits / max(1, prompts * load.prompt_tokens)
        detail = (
            f"The prefix cache had {hits:.0f} tokens of the prompts ({share:.0%}). Their common part explains {wanted}, and chance at most "
            f"{most:.0f} of {prompts} prompts."
        )
        yield reason("prefix_hits_unwanted", detail)


def _ttft_reasons(raw: RawResult, engines: Sequence[EngineCounters]) -> Iterator[Reason]:
    count, seconds = int(total(engines, "ttft_count") or 0), total(engines, "ttft_s") or 0.0
    if not LEAST_SHARE * len(raw.good) <= count <= len(raw.good):
        return
    last = sorted(raw.good, key=lambda request: request.start + request.ttft)[-count:]
    ours, theirs = math.fsum(request.ttft for request in last) / count, seconds / count
    if ours < theirs * (1 - SLACK):
        detail = (
            f"The client's mean TTFT over the last {count} requests is {1000 * ours:.1f} ms, the servers' own is {1000 * theirs:.1f} ms."
        )
        yield reason("ttft_differs_from_server", detail)
