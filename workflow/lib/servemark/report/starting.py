"""Make the plot and the tables of start-up times: consecutive segments from the start to the first token."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

from servemark.records import Startup
from servemark.report.charts import plot

CLUSTER = "nodes and Ray"
AFTER_PHASES = ("other, up to /health", "/health to first token")
_CACHES = {
    "none": "first start",
    "empty": "first start",
    "other": "cache of other deployments",
    "filled": "cache of an earlier start",
}


def segments(startup: Startup) -> list[tuple[str, float]]:
    """Return the consecutive segments up to the first token as (name, seconds): cluster, logged phases, remainder, first response.

    The remainder up to /health is what the server does not log, such as imports. Seconds are rounded to milliseconds, because sums of
    floats differ between Python 3.11 and 3.12.
    """
    named = [(CLUSTER, startup.cluster_seconds), *((phase.name, phase.seconds) for phase in startup.phases)]
    logged = math.fsum(phase.seconds for phase in startup.phases)
    health, first = startup.seconds_to_health, startup.seconds_to_first_token
    if health is not None:
        named.append((AFTER_PHASES[0], health - logged))
    if health is not None and first is not None:
        named.append((AFTER_PHASES[1], first - health))
    return [(name, whole) for name, seconds in named if (whole := round(seconds, 3)) > 0]


def caches(startup: Startup) -> str | None:
    """Return the state of the compile cache at the start in words; None if it was not recorded.

    The cache folder shows what a start could use. The log shows whether vLLM compiled again.
    """
    words = _CACHES.get(startup.compile_cache or "")
    made = any(phase.name == "compile" and phase.note == "made" for phase in startup.phases)
    return f"{words}, but compiled again" if words and made and startup.compile_cache == "filled" else words


def phases(startups: Iterable[Startup]) -> list[str]:
    """Return the names of all segments in the order of the start-up."""
    names = dict.fromkeys(name for startup in startups for name, _ in segments(startup))
    known = {CLUSTER: -1, AFTER_PHASES[0]: 1, AFTER_PHASES[1]: 2}
    return sorted(names, key=lambda name: known.get(name, 0))


def bars(startups: Sequence[Startup]) -> list[dict[str, Any]]:
    """Return the rows of the plot: seconds of each segment. ``number`` is its position in ``phases``, from 1."""
    order = phases(startups)
    return [
        {"deployment": startup.deployment, "number": order.index(name) + 1, "seconds": seconds}
        for startup in startups
        for name, seconds in segments(startup)
    ]


def spec(startups: Sequence[Startup]) -> dict[str, Any] | None:
    """Return the plot with one stacked bar per deployment; None if no deployment has a segment."""
    totals = [total for startup in startups if (total := math.fsum(seconds for _, seconds in segments(startup)))]
    if not totals:
        return None
    return plot(
        "startup",
        by="phase",
        names=phases(startups),
        height=46 * len(totals),
        wide_enough=f"datum.seconds > {max(totals) / 40}",
        description="Start-up time of each deployment by phase. The table below contains the same numbers.",
    )


def table(startups: Iterable[Startup]) -> dict[str, Any]:
    """Return start-up seconds per deployment: ``phases`` are the columns in the order of the plot, ``lines`` the rows."""
    startups = list(startups)
    columns = phases(startups)
    lines = [{"startup": item, "cells": [dict(segments(item)).get(name) for name in columns], "caches": caches(item)} for item in startups]
    return {"phases": columns, "lines": lines}


def replicas(startups: Iterable[Startup]) -> dict[str, Any]:
    """Return start-up seconds of each replica of deployments with several, in the form of ``table``."""
    starts = [
        (startup.deployment, start, {phase.name: phase.seconds for phase in start.phases})
        for startup in startups
        for start in startup.replicas
    ]
    columns = list(dict.fromkeys(name for *_, seconds in starts for name in seconds))
    lines = [{"deployment": name, "start": start, "cells": [seconds.get(phase) for phase in columns]} for name, start, seconds in starts]
    return {"phases": columns, "lines": lines}
