"""Compare the telemetry in a record with the samples of its nodes, which lie in the attempt's folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from servemark.measurement import samples
from servemark.measurement.samples import Window
from servemark.records import Measurement, Telemetry
from servemark.report import timelines
from servemark.report.gather import RunRecords, locate
from servemark.verification.table_and_report import Difference, compare

CLOCK_S = 0.002
"""Both ends of a load are rounded to milliseconds."""


def compare_telemetry(found: RunRecords, record: Measurement, duration_s: float | None) -> Iterator[Difference | str]:
    """Yield what a record states about its nodes and the samples do not show.

    A record from the ledger has its samples in the archive of the run that measured it. Values that were not known when the point was
    measured may be known by later samples, so they are left out; so is the time without samples up to the moment of reading.

    Args:
        duration_s: the duration by the per-request results; None if there is none.
    """
    stated, place = record.telemetry, timelines.place(record)
    if stated is None or place is None or (record.deployment, record.load.name) not in found.timelines:
        return
    name = f"{record.deployment} {record.load.name}"
    if duration_s is not None and abs(stated.end - stated.begin - duration_s) > CLOCK_S:
        yield Difference((name, "telemetry", "seconds"), "record", stated.end - stated.begin, duration_s)
    nodes = []
    for node in stated.nodes:
        file = locate(found.folder, (place.parents[1] / "telemetry" / f"{node.node}.jsonl").as_posix())
        if file is None and node.samples:
            yield f"{name}: the samples of node {node.node} are missing."
            return
        nodes.append(samples.read(node.node, file or Path()))
    window = Window(since=stated.begin, begin=stated.begin, end=stated.end, now=stated.end)
    recomputed = samples.telemetry(nodes, window)
    yield from compare("record", _comparable(stated, stated), _comparable(recomputed, stated), (name, "telemetry"))


def _comparable(shown: Telemetry, stated: Telemetry) -> Any:
    return _without(shown.model_dump(mode="json"), stated.model_dump(mode="json"))


def _without(value: Any, stated: Any) -> Any:
    """Return a value without gaps, and without what ``stated`` has as not known."""
    if isinstance(value, dict) and isinstance(stated, dict):
        left_out = {"longest_gap_s", *(key for key, known in stated.items() if known is None)}
        return {key: _without(inner, stated.get(key)) for key, inner in value.items() if key not in left_out}
    if isinstance(value, list) and isinstance(stated, list) and len(value) == len(stated):
        return [_without(inner, known) for inner, known in zip(value, stated, strict=True)]
    return value
