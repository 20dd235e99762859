"""What the servers reported each second while a load point was measured: batch, queue and KV cache, as lines and in numbers."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from servemark.records import Measurement, Timeline
from servemark.report.charts import plot
from servemark.report.table import ordered

SAMPLES = 300
"""The most samples of one timeline on the page; of longer ones each is the mean of several seconds."""
ALL_SAMPLES = 4_000
MOST_POINTS = 60
"""Where more points have a timeline, each deployment and workload shows its point of highest throughput and its heaviest."""

COLUMNS = ("seconds", "running", "waiting", "kv_percent")
_Sample = tuple[float, float, float, float | None]


def place(record: Measurement) -> Path | None:
    """Return where a measurement's timeline would be, relative to the run's folder; None where it was not measured in an attempt."""
    number = PurePosixPath(record.attempt or "").name
    if not re.fullmatch(r"\d{3,9}", number):
        return None
    return Timeline.path(Path("deployments", record.deployment, "attempts", number), record.load.name)


def belongs(timeline: Timeline, record: Measurement) -> bool:
    """Return whether it is this very measurement's: an attempt of another run may have the same number."""
    theirs = timeline.deployment, timeline.point, timeline.started_at
    return theirs == (record.deployment, record.load.name, record.started_at)


def shown(measurements: Iterable[Measurement], timelines: Mapping[tuple[str, str], Timeline]) -> list[tuple[Measurement, dict[str, Any]]]:
    """Return the measurements whose timelines the page shows, in the order of the table, each with the row of its timeline."""
    accepted = [item for item in ordered(list(measurements)) if item.verdict != "INVALID"]
    found = [(item, timeline, samples) for item in accepted if (timeline := timelines.get(_key(item))) and (samples := _merged(timeline))]
    if len(found) > MOST_POINTS:
        keep = _best_and_heaviest([item for item, *_ in found])
        found = [entry for entry in found if _key(entry[0]) in keep]
    limit = max(10, min(SAMPLES, ALL_SAMPLES // max(1, len(found))))
    return [(item, _row(item, timeline, samples, limit)) for item, timeline, samples in found]


def fullest_share(timeline: Timeline) -> float | None:
    """Return requests in the fullest of a server's engines over the equal share: the median of the seconds in which it was busy.

    Busy is nine tenths of the most that it had at once, so that filling and draining do not count. Engines of a mixture of experts step
    together, padded to the fullest. None where every server is one engine.
    """
    shares = [
        most * server.engines / running
        for server in timeline.servers
        if server.fullest
        for most, running in zip(server.fullest, server.running, strict=True)
        if running and running >= 0.9 * max(server.running)
    ]
    return statistics.median(shares) if shares else None


def _key(record: Measurement) -> tuple[str, str]:
    return record.deployment, record.load.name


def _best_and_heaviest(records: Sequence[Measurement]) -> set[tuple[str, str]]:
    groups: dict[tuple[str, str], list[Measurement]] = {}
    for item in records:
        groups.setdefault((item.deployment, item.load.workload), []).append(item)
    # They come by load, so that the last is the heaviest.
    chosen = [(max(some, key=lambda item: item.output_throughput or 0.0), some[-1]) for some in groups.values()]
    return {_key(item) for pair in chosen for item in pair}


def _merged(timeline: Timeline) -> list[_Sample]:
    """Return (seconds, running, waiting, KV percent) of all servers together, where all of them responded; idle ends cut off.

    ``running`` and ``waiting`` are added up over the servers; of their KV caches the fullest counts.
    """
    times: dict[float, list[tuple[float, float, float | None]]] = {}
    for server in timeline.servers:
        for seconds, running, waiting, usage in zip(server.seconds, server.running, server.waiting, server.kv_cache_usage, strict=True):
            times.setdefault(seconds, []).append((running, waiting, usage))
    samples: list[_Sample] = []
    for seconds, of in sorted(times.items()):
        if len(of) == len(timeline.servers):
            fullest = max((100 * usage for *_, usage in of if usage is not None), default=None)
            samples.append((seconds, math.fsum(one[0] for one in of), math.fsum(one[1] for one in of), fullest))
    busy = [index for index, (_, running, waiting, _) in enumerate(samples) if running or waiting]
    return samples[max(0, busy[0] - 1) : busy[-1] + 2] if busy else []


def _row(record: Measurement, timeline: Timeline, samples: Sequence[_Sample], limit: int) -> dict[str, Any]:
    """Return ``columns`` for the plot, without those that have no value, and everything else from all samples."""
    size = math.ceil(len(samples) / limit)
    buckets = [samples[start : start + size] for start in range(0, len(samples), size)]
    columns = {name: [_short(_mean(bucket, index)) for bucket in buckets] for index, name in enumerate(COLUMNS)}
    load = record.load
    row = {
        "deployment": record.deployment,
        "workload": load.workload,
        "concurrency": load.concurrency,
        "request_rate_per_s": load.request_rate,
        "repetition": load.repetition,
        "seconds_each": size,
        "samples": len(samples),
        "fullest_share": fullest_share(timeline),
        "columns": {name: values for name, values in columns.items() if any(value is not None for value in values)},
    }
    for index, name in enumerate(COLUMNS[1:], 1):
        row[f"mean_{name}"] = _mean(samples, index)
        row[f"most_{name}"] = max((value for sample in samples if (value := sample[index]) is not None), default=None)
    return row


def _mean(samples: Sequence[_Sample], index: int) -> float | None:
    values = [value for sample in samples if (value := sample[index]) is not None]
    return math.fsum(values) / len(values) if values else None


def _short(value: float | None) -> float | None:
    """Return four significant digits, as few characters in JSON as possible."""
    rounded = None if value is None else float(f"{value:.4g}")
    return int(rounded) if rounded is not None and rounded.is_integer() else rounded


def specs() -> dict[str, dict[str, Any]]:
    """Return the two plots: of rows with ``seconds``, ``kind`` and ``value``."""
    return {
        "requests": _lines("Requests in the batch (running) and in the queue (waiting)", ["running", "waiting"], {"zero": True}),
        "kv": _lines("Use of the KV cache", ["KV cache in use"], {"domain": [0, 100]}),
    }


def _lines(title: str, kinds: list[str], scale: dict[str, Any]) -> dict[str, Any]:
    description = f"{title}, second by second. The table below sums it up."
    dashes = [[1, 0], [6, 3]][: len(kinds)]
    return plot("timeline", by="kind", names=kinds, dashes=dashes, y_scale=scale, description=description)
