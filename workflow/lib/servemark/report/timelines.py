"""Make plots and numbers from the servers' metrics during a load point, one sample per second: batch, queue and KV cache."""

import math
import re
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from servemark.records import Measurement, TelemetryTimeline, Timeline
from servemark.records.restarts import configured
from servemark.report.charts import plot
from servemark.report.measured import ordered

SAMPLES = 300
"""Maximum samples of one timeline in the report. In a longer one, each sample is the mean of several seconds."""
ALL_SAMPLES = 4_000
MOST_POINTS = 60
"""Above this number of timelines, each deployment and workload keeps two: the highest throughput and the heaviest load."""

COLUMNS = ("seconds", "running", "waiting", "kv_percent")
TELEMETRY = ("power_w", "sm_clock_mhz", "foreign_cores")
"""Lists of ``records.TelemetryTimeline``, further columns of a plot."""
# The values of COLUMNS, then those of TELEMETRY.
_Sample = tuple[float | None, ...]


def place(record: Measurement) -> Path | None:
    """Return the path of a measurement's timeline, relative to the run's folder; None if no attempt measured it."""
    number = PurePosixPath(record.attempt or "").name
    if not re.fullmatch(r"\d{3,9}", number):
        return None
    return Timeline.path(Path("deployments", record.deployment, "attempts", number), record.load.name)


def belongs(timeline: Timeline, record: Measurement) -> bool:
    """Return whether the timeline belongs to this measurement. An attempt of another run may have the same number."""
    theirs = timeline.deployment, timeline.point, timeline.started_at
    return theirs == (record.deployment, record.load.name, record.started_at)


def shown(measurements: Iterable[Measurement], timelines: Mapping[tuple[str, str], Timeline]) -> list[tuple[Measurement, dict[str, Any]]]:
    """Return the measurements whose timelines the report shows, in the order of the table, each with its timeline's row."""
    accepted = [item for item in ordered(list(measurements)) if item.verdict != "INVALID"]
    found = [(item, timeline, samples) for item in accepted if (timeline := timelines.get(_key(item))) and (samples := _merged(timeline))]
    if len(found) > MOST_POINTS:
        keep = _best_and_heaviest([item for item, *_ in found])
        found = [entry for entry in found if _key(entry[0]) in keep]
    limit = max(10, min(SAMPLES, ALL_SAMPLES // max(1, len(found))))
    return [(item, _row(item, timeline, samples, limit)) for item, timeline, samples in found]


def fullest_share(timeline: Timeline) -> float | None:
    """Return the requests of a server's fullest engine over the mean per engine, as the median of the server's busy seconds.

    A second is busy if the server runs at least nine tenths of its maximum. This excludes the beginning and the end. None if every
    server has one engine.
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
        groups.setdefault((configured(item.deployment), item.load.workload), []).append(item)
    # Records are sorted by load, so the last one is the heaviest.
    chosen = [(max(some, key=lambda item: item.output_throughput or 0.0), some[-1]) for some in groups.values()]
    return {_key(item) for pair in chosen for item in pair}


def _merged(timeline: Timeline) -> list[_Sample]:
    """Return the samples of the seconds in which all servers responded, without idle ends.

    ``running`` and ``waiting`` are sums over the servers. KV percent is that of the fullest cache. Telemetry is that of the nearest second.
    """
    times: dict[float, list[tuple[float, float, float | None]]] = {}
    for server in timeline.servers:
        for seconds, running, waiting, usage in zip(server.seconds, server.running, server.waiting, server.kv_cache_usage, strict=True):
            times.setdefault(seconds, []).append((running, waiting, usage))
    samples: list[_Sample] = []
    for seconds, of in sorted(times.items()):
        if len(of) == len(timeline.servers):
            fullest = max((100 * usage for *_, usage in of if usage is not None), default=None)
            requests = (math.fsum(one[0] for one in of), math.fsum(one[1] for one in of))
            samples.append((seconds, *requests, fullest, *_telemetry_at(timeline.telemetry, round(seconds))))
    busy = [index for index, (_, running, waiting, *_) in enumerate(samples) if running or waiting]
    return samples[max(0, busy[0] - 1) : busy[-1] + 2] if busy else []


def _telemetry_at(found: TelemetryTimeline | None, second: int) -> Iterator[float | None]:
    """Yield the values of ``TELEMETRY`` at a second; its lists begin at 0."""
    for name in TELEMETRY:
        values = getattr(found, name, ())
        yield values[second] if second < len(values) else None


def _row(record: Measurement, timeline: Timeline, samples: Sequence[_Sample], limit: int) -> dict[str, Any]:
    """Return the row of a timeline: ``columns`` for the plot, means and maxima of all samples."""
    size = math.ceil(len(samples) / limit)
    buckets = [samples[start : start + size] for start in range(0, len(samples), size)]
    columns = {name: [_short(_mean(bucket, index)) for bucket in buckets] for index, name in enumerate(COLUMNS + TELEMETRY)}
    load = record.load
    row = {
        "deployment": configured(record.deployment),
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
    """Return four significant digits, which keeps the JSON short."""
    rounded = None if value is None else float(f"{value:.4g}")
    return int(rounded) if rounded is not None and rounded.is_integer() else rounded


def specs() -> dict[str, dict[str, Any]]:
    """Return the plots. Their rows have ``seconds``, ``kind`` and ``value``."""
    below = " The table below contains the means and maxima."
    return {
        "requests": _lines("Requests in the batch (running) and in the queue (waiting)", ["running", "waiting"], {"zero": True}, below),
        "kv": _lines("KV cache in use", ["KV cache in use"], {"domain": [0, 100]}, below),
        "power": _lines("Power of all GPUs in watts", ["GPU power"], {"zero": True}),
        "clock": _lines("Mean SM clock of the GPUs with ranks in MHz", ["SM clock"], {"zero": True}),
        "foreign": _lines("CPU cores that other processes used", ["other processes"], {"zero": True}),
    }


def _lines(title: str, kinds: list[str], scale: dict[str, Any], more: str = "") -> dict[str, Any]:
    description = f"{title}, second by second.{more}"
    dashes = [[1, 0], [6, 3]][: len(kinds)]
    return plot("timeline", by="kind", names=kinds, dashes=dashes, y_scale=scale, description=description)
