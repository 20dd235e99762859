"""The way of each deployment to its first token: consecutive segments, and the stacked bars that show them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from servemark.records import Startup
from servemark.report.charts import SCHEMA

_CLUSTER = "nodes and Ray"
_AFTER_PHASES = ("other, up to /health", "/health to first token")
_CACHES = {
    "none": "first start",
    "empty": "first start",
    "other": "caches of other deployments",
    "filled": "caches of an earlier start",
}


def segments(startup: Startup) -> list[tuple[str, float]]:
    """Return the way to the first token as consecutive (name, seconds): cluster, logged phases, what no phase names, answer.

    The phases are what the server logs; imports, configuration and the like are the remainder up to /health. Records have milliseconds,
    and what is less is an error of the sums, which differs between Pythons (3.12 adds floats otherwise than 3.11).
    """
    named = [(_CLUSTER, startup.cluster_seconds), *((phase.name, phase.seconds) for phase in startup.phases)]
    logged = math.fsum(phase.seconds for phase in startup.phases)
    health, first = startup.seconds_to_health, startup.seconds_to_first_token
    if health is not None:
        named.append((_AFTER_PHASES[0], health - logged))
    if health is not None and first is not None:
        named.append((_AFTER_PHASES[1], first - health))
    return [(name, whole) for name, seconds in named if (whole := round(seconds, 3)) > 0]


def caches(startup: Startup) -> str | None:
    """Return what the servers found of compiled code, for people; None where it is not known.

    What is in a folder says what a start could use; the log says what vLLM made of it, which is added where the two differ.
    """
    words = _CACHES.get(startup.compile_cache or "")
    made = any(phase.name == "compile" and phase.note == "made" for phase in startup.phases)
    return f"{words}, but compiled anew" if words and made and startup.compile_cache == "filled" else words


def phases(startups: Sequence[Startup]) -> list[str]:
    """Return names of all segments, each once, in the order in which deployments pass them."""
    names: dict[str, None] = {}
    for startup in startups:
        names |= dict.fromkeys(name for name, _ in segments(startup))
    known = {_CLUSTER: -1, _AFTER_PHASES[0]: 1, _AFTER_PHASES[1]: 2}
    return sorted(names, key=lambda name: known.get(name, 0))


def spec(startups: Sequence[Startup]) -> dict[str, Any] | None:
    """Return stacked bars of the start-up, one a deployment; None where no deployment came far enough to show a segment."""
    order = phases(startups)
    values = [
        {"deployment": startup.deployment, "phase": name, "seconds": seconds, "number": order.index(name) + 1}
        for startup in startups
        for name, seconds in segments(startup)
    ]
    if not values:
        return None
    total = max(math.fsum(seconds for _, seconds in segments(startup)) for startup in startups)
    shared: dict[str, dict[str, Any]] = {
        "y": {"field": "deployment", "type": "nominal", "title": None, "sort": None},
        "x": {
            "field": "seconds",
            "type": "quantitative",
            "title": "Seconds",
            "stack": "zero",
            "axis": {"tickCount": 6},
        },
        "order": {"field": "number", "type": "quantitative"},
    }
    return {
        "$schema": SCHEMA,
        "description": "Start-up time of each deployment by phase. The table below it holds the same numbers.",
        "width": "container",
        "height": 46 * len({value["deployment"] for value in values}),
        "autosize": {"type": "fit-x", "contains": "padding"},
        "data": {"values": values},
        "layer": [
            {
                "mark": {"type": "bar", "height": 28},
                "encoding": {
                    **shared,
                    "color": {"field": "phase", "type": "nominal", "scale": {"domain": order}, "legend": None},
                    "tooltip": [
                        {"field": "deployment", "title": "Deployment", "type": "nominal"},
                        {"field": "phase", "title": "Phase", "type": "nominal"},
                        {"field": "seconds", "title": "Seconds", "type": "quantitative", "format": ".3~r"},
                    ],
                },
            },
            {
                "mark": {"type": "text", "fontSize": 12, "fontWeight": 700, "tooltip": None, "aria": False},
                "encoding": {
                    **shared,
                    "x": {**shared["x"], "bandPosition": 0.5},
                    "detail": {"field": "phase", "type": "nominal"},
                    "text": {
                        "condition": {
                            "test": f"datum.seconds > {total / 40}",
                            "field": "number",
                            "type": "quantitative",
                        },
                        "value": "",
                    },
                },
            },
        ],
    }
