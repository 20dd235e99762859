"""What the servers said each second while a load point was measured: batch, queue and KV cache, as lines and in numbers."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path, PurePosixPath
from typing import Any

from servemark.records import Measurement, Timeline
from servemark.report.charts import SCHEMA
from servemark.report.table import ordered

SAMPLES = 300
"""The most samples of one timeline on the page; of longer ones each is the mean of several seconds."""
ALL_SAMPLES = 4_000
MOST_POINTS = 60
"""Where more points have a timeline, each deployment and workload shows its point of highest throughput and its heaviest."""

COLUMNS = ("seconds", "running", "waiting", "kv_percent")


@dataclass(frozen=True)
class Shown:
    """One point's timeline: ``columns`` for the plot, everything else from all samples.

    ``running`` and ``waiting`` are added up over the servers, of their KV caches the fullest counts (percent). ``fullest_share``: see
    :func:`fullest_share`; None where every server is one engine.
    """

    record: Measurement
    columns: Mapping[str, tuple[float | None, ...]]
    seconds_each: int
    samples: int
    mean_running: float
    most_running: float
    mean_waiting: float
    most_waiting: float
    mean_kv_percent: float | None
    most_kv_percent: float | None
    fullest_share: float | None


_NUMBERS = tuple(item.name for item in fields(Shown) if item.name not in ("record", "columns"))


def place(record: Measurement) -> Path | None:
    """Return where a measurement's timeline would be, relative to the run's folder; None where it was not measured in an attempt."""
    number = PurePosixPath(record.attempt or "").name
    if not re.fullmatch(r"\d{3,9}", number):
        return None
    return Timeline.path(Path("deployments", record.deployment, "attempts", number), record.load.name)


def belongs(timeline: Timeline, record: Measurement) -> bool:
    """Return whether it is this very measurement's: an attempt of another run may have the same number."""
    return (timeline.deployment, timeline.point, timeline.started_at) == (
        record.deployment,
        record.load.name,
        record.started_at,
    )


def shown(measurements: Iterable[Measurement], timelines: Mapping[tuple[str, str], Timeline]) -> list[Shown]:
    """Return the timelines of the page, in the order of the table. ``timelines`` are keyed by deployment and point."""
    accepted = [item for item in ordered(list(measurements)) if item.verdict != "INVALID"]
    found = [(item, merged) for item in accepted if (merged := _merged(timelines.get((item.deployment, item.load.name))))]
    if len(found) > MOST_POINTS:
        keep = _best_and_heaviest([item for item, _ in found])
        found = [(item, merged) for item, merged in found if (item.deployment, item.load.name) in keep]
    limit = max(10, min(SAMPLES, ALL_SAMPLES // max(1, len(found))))
    return [_shown(item, merged, limit, timelines[item.deployment, item.load.name]) for item, merged in found]


def fullest_share(timeline: Timeline) -> float | None:
    """Return requests in the fullest of a server's engines over the equal share: the median of the seconds in which it was busy.

    Busy is nine tenths of the most that it had at once, so that filling and draining do not count. Engines of a mixture of experts step
    together, padded to the fullest.
    """
    shares = [
        most * server.engines / running
        for server in timeline.servers
        if server.fullest
        for most, running in zip(server.fullest, server.running, strict=True)
        if running and running >= 0.9 * max(server.running)
    ]
    return statistics.median(shares) if shares else None


def _best_and_heaviest(records: Sequence[Measurement]) -> set[tuple[str, str]]:
    groups: dict[tuple[str, str], list[Measurement]] = {}
    for item in records:
        groups.setdefault((item.deployment, item.load.workload), []).append(item)
    # They come by load, so that the last is the heaviest.
    chosen = [(max(some, key=lambda item: item.output_throughput or 0.0), some[-1]) for some in groups.values()]
    return {(item.deployment, item.load.name) for pair in chosen for item in pair}


_Sample = tuple[float, float, float, float | None]


def _merged(timeline: Timeline | None) -> list[_Sample]:
    """Return (seconds, running, waiting, KV percent) of all servers together, where all of them answered; idle ends cut off."""
    if timeline is None:
        return []
    times: dict[float, list[tuple[float, float, float | None]]] = {}
    for server in timeline.servers:
        said = zip(server.running, server.waiting, server.kv_cache_usage, strict=True)
        for seconds, answer in zip(server.seconds, said, strict=True):
            times.setdefault(seconds, []).append(answer)
    samples: list[_Sample] = []
    for seconds, answers in sorted(times.items()):
        if len(answers) != len(timeline.servers):
            continue
        usages = [usage * 100 for _, _, usage in answers if usage is not None]
        running, waiting = (math.fsum(column) for column in list(zip(*answers, strict=True))[:2])
        samples.append((seconds, running, waiting, max(usages, default=None)))
    busy = [index for index, (_, running, waiting, _) in enumerate(samples) if running or waiting]
    return samples[max(0, busy[0] - 1) : busy[-1] + 2] if busy else []


def _shown(record: Measurement, samples: Sequence[_Sample], limit: int, timeline: Timeline) -> Shown:
    size = math.ceil(len(samples) / limit)
    buckets = [samples[start : start + size] for start in range(0, len(samples), size)]
    columns = {name: tuple(_mean(b, index) for b in buckets) for index, name in enumerate(COLUMNS)}
    running, waiting = [sample[1] for sample in samples], [sample[2] for sample in samples]
    usages = [usage for *_, usage in samples if usage is not None]
    return Shown(
        record=record,
        columns=columns,
        seconds_each=size,
        samples=len(samples),
        mean_running=math.fsum(running) / len(running),
        most_running=max(running),
        mean_waiting=math.fsum(waiting) / len(waiting),
        most_waiting=max(waiting),
        mean_kv_percent=math.fsum(usages) / len(usages) if usages else None,
        most_kv_percent=max(usages, default=None),
        fullest_share=fullest_share(timeline),
    )


def _mean(bucket: Sequence[_Sample], index: int) -> float | None:
    values = [value for sample in bucket if (value := sample[index]) is not None]
    return float(f"{math.fsum(values) / len(values):.4g}") if values else None


def busiest(found: Sequence[Shown]) -> int:
    """Return the one to show first: the most output tokens per second."""
    return max(range(len(found)), key=lambda index: found[index].record.output_throughput or 0.0, default=0)


def row(item: Shown) -> dict[str, Any]:
    """Return the numbers of one timeline, and its columns for the plots; a column without any value is left out."""
    load = item.record.load
    return {
        "deployment": item.record.deployment,
        "workload": load.workload,
        "concurrency": load.concurrency,
        "request_rate_per_s": load.request_rate,
        "repetition": load.repetition,
        **{name: getattr(item, name) for name in _NUMBERS},
        "columns": {name: [*map(_short, of)] for name, of in item.columns.items() if any(v is not None for v in of)},
    }


def _short(value: float | None) -> float | None:
    """Return the same number with fewer characters in JSON."""
    return int(value) if value is not None and value.is_integer() else value


def specs() -> dict[str, dict[str, Any]]:
    """Return the two plots, without data: rows of ``seconds``, ``kind`` and ``value``. Parameter ``dots`` shows each sample."""
    return {
        "requests": _lines("Requests in the batch (running) and in the queue (waiting)", ["running", "waiting"], None),
        "kv": _lines("Use of the KV cache", ["KV cache in use"], [0, 100]),
    }


def _lines(title: str, kinds: Sequence[str], domain: list[float] | None) -> dict[str, Any]:
    x = {
        "field": "seconds",
        "type": "quantitative",
        "title": "Seconds since the client was started",
        "scale": {"zero": False, "nice": False, "padding": 8},
        "axis": {"grid": False, "tickCount": 8},
    }
    scale = {"domain": domain} if domain else {"zero": True}
    y = {"field": "value", "type": "quantitative", "title": None, "scale": scale, "axis": {"tickCount": 4}}
    colour = {"field": "kind", "type": "nominal", "scale": {"domain": list(kinds)}, "legend": None}
    dash = {**colour, "scale": {"domain": list(kinds), "range": [[1, 0], [6, 3]][: len(kinds)]}}
    tooltip = [
        {"field": "seconds", "title": "Second", "type": "quantitative", "format": ",.4~r"},
        {"field": "kind", "title": "What", "type": "nominal"},
        {"field": "value", "title": "Value", "type": "quantitative", "format": ",.4~r"},
    ]
    dots = {"condition": {"test": "dots", "value": 1}, "value": 0}
    shared = {"x": x, "y": y}
    return {
        "$schema": SCHEMA,
        "description": f"{title}, second by second. The table below sums it up.",
        "width": "container",
        "height": 190,
        "autosize": {"type": "fit-x", "contains": "padding"},
        "data": {"values": []},
        "params": [{"name": "dots", "value": False}],
        "layer": [
            {
                "mark": {"type": "line", "strokeWidth": 2, "tooltip": None, "aria": False},
                "encoding": {**shared, "color": colour, "strokeDash": dash},
            },
            {
                "mark": {"type": "point", "filled": True, "size": 30, "aria": False},
                "encoding": {**shared, "color": colour, "opacity": dots, "tooltip": tooltip},
            },
        ],
    }
