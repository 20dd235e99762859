"""Compare the repetitions of each load point when the measurements are collected. Records and ledger keep the verdict of each one alone."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from servemark.errors import ServemarkError
from servemark.measurement.reasons import reason
from servemark.records import Measurement
from servemark.records.restarts import configured

LIMIT = "max_repetition_spread"
"""The threshold of this module. A record of one measurement does not state it."""
VALID_ALONE = 6
"""Archive format from which on a SUSPECT repetition does not make VALID ones SUSPECT. Before, all of a load were compared."""


class Spread(NamedTuple):
    """The spread of a result over repetitions. ``deviation``: standard deviation of its logarithms, a fraction of the result."""

    low: float
    high: float
    deviation: float


def limit(config: Mapping[str, Any]) -> float | None:
    """Return ``verdict.max_repetition_spread`` of a resolved configuration; None if it states none, as before archive format 3.

    Raises:
        ServemarkError: it is not a number.
    """
    thresholds = config.get("verdict", {})
    found = thresholds.get(LIMIT) if isinstance(thresholds, Mapping) else thresholds
    if found is None or (isinstance(found, (int, float)) and not isinstance(found, bool)):
        return found
    raise ServemarkError(
        f"config.json contains {found!r} as verdict.max_repetition_spread.",
        do="Rerun snakemake: it writes the file.",
        reason="record_broken",
    )


def judged(measurements: Sequence[Measurement], most: float | None, archive_format: int | None = None) -> list[Measurement]:
    """Return the measurements in the same order; VALID repetitions of a load that differ too much are SUSPECT.

    VALID repetitions are compared with one another. A SUSPECT one is compared with all of its load, and does not change the verdict of the
    others: what made it SUSPECT may also have changed its speed.

    The standard deviation does not grow with the number of repetitions, as the ratio of the largest to the smallest does. The result
    compared is the one that the load leaves open. In a closed loop this is the output throughput, which also states the mean latency:
    requests in flight = requests per second x mean latency (Little, Operations Research 9, 1961, 383-387). At a request rate the
    client decides the throughput, so it is the mean end-to-end latency.

    Args:
        most: the limit; None for results from before this check.
        archive_format: of the archive that holds the measurements; None for this version's rules.
    """
    if most is None:
        return list(measurements)
    together = archive_format is not None and archive_format < VALID_ALONE
    loads: dict[tuple[object, ...], list[Measurement]] = {}
    for item in measurements:
        if item.verdict != "INVALID":
            loads.setdefault(_point(item), []).append(item)
    every = {load: _difference(items, most, "") for load, items in loads.items()}
    valid = {load: _difference([item for item in items if item.verdict == "VALID"], most, "VALID ") for load, items in loads.items()}
    found = {"SUSPECT": every, "VALID": every if together else valid}
    return [_judged(item, most, found[item.verdict][_point(item)]) if item.verdict != "INVALID" else item for item in measurements]


def spread(values: Iterable[float]) -> Spread | None:
    """Return the spread of two or more positive values, otherwise None."""
    known = list(values)
    if len(known) < 2 or min(known) <= 0:
        return None
    return Spread(min(known), max(known), statistics.stdev(map(math.log, known)))


def _point(item: Measurement) -> tuple[object, ...]:
    return configured(item.deployment), item.load.workload, item.load.concurrency, item.load.request_rate


def _difference(items: Sequence[Measurement], most: float, verdict: str) -> str | None:
    by_rate = any(item.load.request_rate is not None for item in items)
    values = [(item.e2el_ms.mean if item.e2el_ms else None) if by_rate else item.output_throughput for item in items]
    found = spread(value for value in values if value is not None)
    if found is None or found.deviation <= most:
        return None
    what = "ms mean end-to-end latency" if by_rate else "output tokens/s"
    return (
        f"{len(items)} {verdict}repetitions of this load gave {found.low:.4g} to {found.high:.4g} {what}: their relative standard "
        f"deviation is {found.deviation:.1%}, and the limit is {most:.1%}."
    )


def _judged(item: Measurement, most: float, detail: str | None) -> Measurement:
    changes: dict[str, Any] = {"thresholds": {**item.thresholds, LIMIT: most}}
    if detail:
        changes |= {"verdict": "SUSPECT", "reasons": (*item.reasons, reason("repetitions_differ", detail))}
    return item.model_copy(update=changes)
