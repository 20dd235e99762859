"""The servers' own counters of a load point: what each engine did between two scrapes of /metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from prometheus_client import Metric

from servemark.records import EngineCounters, ServerCounters

_COUNTERS = {
    "finished": "request_success_total",
    "generated": "generation_tokens_total",
    "preemptions": "num_preemptions_total",
    "ttft_s": "time_to_first_token_seconds_sum",
    "ttft_count": "time_to_first_token_seconds_count",
    "prefix_queries": "prefix_cache_queries_total",
    "prefix_hits": "prefix_cache_hits_total",
    "drafts": "spec_decode_num_drafts_total",
    "draft_tokens": "spec_decode_num_draft_tokens_total",
    "accepted_tokens": "spec_decode_num_accepted_tokens_total",
}
"""vLLM's names (vllm/v1/metrics/loggers.py and vllm/v1/spec_decode/metrics.py, 0.32), without ``vllm:``."""
_NAMES = {sample: name for name, sample in _COUNTERS.items()}

Scrape = tuple[EngineCounters, ...]
"""One server's engines since its start; their replica is not known yet."""


def parse(families: Sequence[Metric]) -> Scrape:
    """Return the counters of each engine in one response to /metrics, summed over all other labels."""
    found: dict[str, dict[str, float]] = {}
    for family in families:
        for sample in family.samples:
            if (name := _NAMES.get(sample.name.removeprefix("vllm:"))) is not None:
                engine = found.setdefault(sample.labels.get("engine", "0"), {})
                engine[name] = engine.get(name, 0.0) + sample.value
    return tuple(_engine("", engine, values) for engine, values in sorted(found.items()))


def _engine(replica: str, engine: str, values: Mapping[str, float]) -> EngineCounters:
    whole: dict[str, Any] = {name: value if name == "ttft_s" else round(value) for name, value in values.items()}
    return EngineCounters(replica=replica, engine=engine, **{"finished": 0, "generated": 0, **whole})


def finished(scrapes: Mapping[str, Scrape]) -> int:
    """Return the requests that the servers have finished since their start."""
    return sum(engine.finished for scrape in scrapes.values() for engine in scrape)


def between(before: Mapping[str, Scrape], after: Mapping[str, Scrape], replicas: Mapping[str, str]) -> Scrape:
    """Return what each engine did between two scrapes of the servers. ``replicas``: the replica of each server."""
    return tuple(
        _difference({engine.engine: engine for engine in before[server]}.get(late.engine), late, replicas[server])
        for server, scrape in after.items()
        for late in scrape
    )


def _difference(early: EngineCounters | None, late: EngineCounters, replica: str) -> EngineCounters:
    values = {name: value for name in _COUNTERS if (value := getattr(late, name)) is not None}
    return _engine(replica, late.engine, {name: value - (getattr(early, name, 0) or 0) for name, value in values.items()})


def of_point(
    before: Mapping[str, Scrape],
    during: Sequence[Mapping[str, Scrape]],
    after: Mapping[str, Scrape],
    replicas: Mapping[str, str],
    warmups: int,
    vocabulary: int | None,
) -> ServerCounters:
    """Return the counters of one load point.

    Args:
        before, after: the servers' scrapes before the client's start and after its end.
        during: their scrapes in between, oldest first.
        replicas: the replica of each server.
        warmups: requests that the client sends first, and waits for.
        vocabulary: number of tokens that the model knows.
    """
    begun, ended = finished(before), finished(after)
    # A load that is shorter than the time between two scrapes may end before the first one.
    warm = next((scrape for scrape in (before, *during) if begun + warmups <= finished(scrape) < ended), None)
    return ServerCounters(
        engines=between(before, after, replicas),
        measured=between(warm, after, replicas) if warm is not None else (),
        finished_before=begun,
        vocabulary=vocabulary,
    )


def by_replica(counted: ServerCounters | None) -> dict[str, int]:
    """Return the number of requests that each replica finished."""
    requests: dict[str, int] = {}
    for engine in counted.engines if counted else ():
        requests[engine.replica] = requests.get(engine.replica, 0) + engine.finished
    return requests
