"""Count the per-request latencies of a load, and for a dataset also the lengths, in bins, which are the same for every deployment.

Bins have steps of 1, 2 or 5 if the latencies of a load lie within a factor of ten; otherwise 20 per decade (preferred numbers R20 of
ISO 3). The edges are constants, not logarithms, so every machine gets the same counts. Bins of lengths have whole edges, and above a
factor of ten those of the dataset's record.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from servemark.measurement import statistics
from servemark.measurement.raw import RawError, read_raw
from servemark.records import Measurement, StagedPrompts
from servemark.records.dataset import length_edges
from servemark.records.restarts import configured
from servemark.report import charts, formatting

R20 = (1, 1.12, 1.25, 1.4, 1.6, 1.8, 2, 2.24, 2.5, 2.8, 3.15, 3.55, 4, 4.5, 5, 5.6, 6.3, 7.1, 8, 9)
LOGARITHMIC_EDGES = tuple(float(f"{number}e{power}") for power in range(-2, 7) for number in R20)
"""Milliseconds, from 0.01 ms to 9,000 s. One more bin begins at 0."""
_STEPS = tuple(float(f"{number}e{power}") for power in range(-4, 7) for number in (1, 2, 5))
LINEAR_BINS = 40
"""Maximum number of linear bins. The step is the smallest one that needs no more."""
LINEAR_FACTOR = 10
METRICS = {**formatting.METRICS, **formatting.LENGTHS}
MOST = 150
"""Maximum of loads times deployments in a report. Above it, each workload keeps its lightest and heaviest load, or only the heaviest."""


@dataclass(frozen=True)
class Bins:
    """Bins of one metric. ``counts`` by deployment: entry i is the number of samples in [edges[i], edges[i + 1]) milliseconds or tokens."""

    edges: tuple[float, ...]
    counts: Mapping[str, tuple[int, ...]]
    logarithmic: bool


@dataclass(frozen=True)
class Distribution:
    """The bins of each metric (keys of ``METRICS``) at one load of a workload, over all repetitions. Lengths: of a dataset only."""

    workload: str
    concurrency: int | None
    request_rate: float | None
    metrics: Mapping[str, Bins] = field(default_factory=dict)


_Load = tuple[str, int | None, float | None]
_Results = list[tuple[Measurement, Path]]


def distributions(results: Iterable[tuple[Measurement, Path]], most: int = MOST) -> list[Distribution]:
    """Return the distributions of each load with accepted measurements, sorted by workload and load.

    A file that cannot be read is skipped: the verdict reports it.
    """
    loads: dict[_Load, _Results] = {}
    for record, path in results:
        if record.verdict != "INVALID":
            loads.setdefault((record.load.workload, record.load.concurrency, record.load.request_rate), []).append((record, path))
    by_workload: dict[str, list[_Load]] = {}
    for load in sorted(loads, key=lambda load: (load[0], formatting.load_order(*load[1:]))):
        by_workload.setdefault(load[0], []).append(load)
    choices = (lambda some: some), (lambda some: dict.fromkeys((some[0], some[-1]))), (lambda some: some[-1:])
    kept: list[_Load] = []
    for choice in choices:
        kept = [load for some in by_workload.values() for load in choice(some)]
        if sum(len({configured(record.deployment) for record, _ in loads[load]}) for load in kept) <= most:
            break
    return [Distribution(*load, metrics) for load in kept if (metrics := _metrics(loads[load]))]


def _metrics(results: _Results) -> dict[str, Bins]:
    samples: dict[str, dict[str, list[np.ndarray]]] = {metric: {} for metric in METRICS}
    for record, path in results:
        try:
            raw = read_raw(path)
        except RawError:
            continue
        for metric, seconds in statistics.latencies(raw.good).items():
            # A damaged file may contain a negative time.
            values = np.maximum(np.asarray(seconds, dtype=np.float64) * statistics.MS, 0.0)
            samples[metric].setdefault(configured(record.deployment), []).append(values)
        if isinstance(record.load.prompts, StagedPrompts):
            for length in formatting.LENGTHS:
                found = np.asarray([getattr(request, length) for request in raw.good], dtype=np.float64)
                samples[length].setdefault(configured(record.deployment), []).append(found)
    pooled = {metric: {name: np.concatenate(parts) for name, parts in of.items()} for metric, of in samples.items()}
    return {metric: bins(of, whole=metric in formatting.LENGTHS) for metric, of in pooled.items() if sum(map(len, of.values()))}


def bins(samples: Mapping[str, np.ndarray], *, whole: bool = False) -> Bins:
    """Count samples by deployment, in milliseconds. At least one deployment has a sample, and none is negative.

    Args:
        whole: the samples are whole numbers of tokens, and so are the edges.
    """
    low = min(float(values.min()) for values in samples.values() if len(values))
    high = max(float(values.max()) for values in samples.values() if len(values))
    logarithmic = high > LINEAR_FACTOR * low or high > LOGARITHMIC_EDGES[-1]
    ladder = length_edges(int(high)) if whole else (0.0, *LOGARITHMIC_EDGES, math.inf)
    edges = np.asarray(ladder if logarithmic else _linear(low, high, 1.0 if whole else 0.0), dtype=np.float64)
    counts = {name: np.histogram(values, edges)[0] for name, values in sorted(samples.items())}
    used = np.flatnonzero(np.sum(list(counts.values()), axis=0))
    first, last = int(used[0]), int(used[-1])
    shown = [float(edge) for edge in edges[first : last + 2]]
    if math.isinf(shown[-1]):
        # JSON has no infinity, so the last bin ends at the longest sample.
        shown[-1] = high
    parts = {name: tuple(int(count) for count in of[first : last + 1]) for name, of in counts.items()}
    return Bins(tuple(shown), parts, logarithmic)


def _linear(low: float, high: float, least: float) -> list[float]:
    """Return multiples of a step, from below ``low`` to above ``high``. The step is at least ``least`` and a thousandth of ``high``."""
    step = next(step for step in _STEPS if (high - low) / step < LINEAR_BINS - 1 and 1000 * step >= high and step >= least)
    # Rounded, because 3 x 0.1 is not 0.3. One more edge on either side, because rounding moves an edge.
    return [round(number * step, 10) for number in range(math.floor(low / step) - 1, math.floor(high / step) + 3)]


def left_out(found: Sequence[Distribution], points: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether a load with accepted measurements (rows of ``views.medians``) is missing in ``found``."""
    return len(found) < len({(point["workload"], point["load"]) for point in points if point["repetitions_accepted"]})


def heaviest(found: Sequence[Distribution]) -> int:
    """Return the position of the heaviest load of the first workload, which the report shows first."""
    return sum(item.workload == found[0].workload for item in found) - 1 if found else 0


def lengths(found: Iterable[Distribution]) -> dict[str, str]:
    """Return the lengths that have bins at any load, with their labels."""
    present = {metric for item in found for metric in item.metrics}
    return {metric: label for metric, label in formatting.LENGTHS.items() if metric in present}


def specs(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the plot of each metric. ``names`` are the deployments of the legend."""
    found = {}
    for metric, title in METRICS.items():
        counted = "gaps between chunks" if metric == "itl" else "requests"
        text = f"{title}: share of a deployment's {counted} in each bin, in percent. The tables of bins contain the same numbers."
        unit = "Tokens" if metric in formatting.LENGTHS else "Milliseconds"
        found[metric] = charts.plot("bins", **charts.looks(names), counted=counted.capitalize(), unit=unit, description=text)
    return found
