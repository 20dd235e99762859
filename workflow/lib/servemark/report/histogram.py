"""The plots of latency distributions: one specification a latency, and the counts that the page's scripts put into it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from servemark.report import formatting
from servemark.report.charts import SCHEMA, series
from servemark.report.distributions import Distribution


def loads(distributions: Sequence[Distribution]) -> list[dict[str, Any]]:
    """Return the bins of each latency, for every load."""
    return [
        {metric: {"edges": bins.edges, "logarithmic": bins.logarithmic, "counts": bins.counts} for metric, bins in item.metrics.items()}
        for item in distributions
    ]


def specs(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the specification of each latency's plot. ``names`` are the deployments of the legend."""
    return {metric: spec(metric, title, names) for metric, title in formatting.METRICS.items()}


def heaviest(distributions: Sequence[Distribution]) -> int:
    """Return the one to show first: the heaviest load of the first workload."""
    return sum(item.workload == distributions[0].workload for item in distributions) - 1 if distributions else 0


def left_out(distributions: Sequence[Distribution], points: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether a load with accepted measurements (rows of ``views.medians``) is not shown."""
    accepted = {(point["workload"], point["concurrency"], point["request_rate_per_s"]) for point in points if point["repetitions_accepted"]}
    return len(distributions) < len(accepted)


def spec(metric: str, title: str, names: Sequence[str]) -> dict[str, Any]:
    """Return steps of each deployment over each other, without data: the page's scripts fill in rows, and what the axes span.

    They span the same when a deployment is hidden, so that nothing jumps.
    """
    looks = series(names)
    domain = [look["name"] for look in looks]
    colour = {"field": "deployment", "type": "nominal", "scale": {"domain": domain}, "legend": None}
    dash = {**colour, "scale": {"domain": domain, "range": [look["dash"] for look in looks]}}
    x = {
        "field": "low",
        "type": "quantitative",
        "title": "Milliseconds",
        "scale": {"type": "linear", "nice": False},
        "axis": {"grid": False, "format": "~r", "tickCount": 6, "labelOverlap": "greedy"},
    }
    y = {
        "field": "share",
        "type": "quantitative",
        "title": None,
        "stack": None,
        "scale": {"nice": True},
        "axis": {"tickCount": 4, "format": "~r"},
    }
    what = "gaps between pieces of answers" if metric == "itl" else "requests"
    tooltip = [
        {"field": "deployment", "title": "Deployment", "type": "nominal"},
        {"field": "range", "title": "Milliseconds", "type": "nominal"},
        {"field": "count", "title": what.capitalize(), "type": "quantitative"},
        {"field": "share", "title": "Share (%)", "type": "quantitative", "format": ".3~r"},
    ]
    return {
        "$schema": SCHEMA,
        "description": f"{title}: share of a deployment's {what} in each bin, in percent. The tables of bins hold the same numbers.",
        "width": "container",
        "height": 190,
        "autosize": {"type": "fit-x", "contains": "padding"},
        "data": {"values": []},
        "params": [{"name": "hidden", "value": []}],
        "transform": [{"filter": "indexof(hidden, datum.deployment) < 0"}],
        "layer": [
            {
                "mark": {"type": "rect", "opacity": 0.2, "aria": False},
                "encoding": {
                    "x": x,
                    "x2": {"field": "high"},
                    "y": y,
                    "y2": {"datum": 0},
                    "color": colour,
                    "tooltip": tooltip,
                },
            },
            {
                "mark": {
                    "type": "line",
                    "interpolate": "step-after",
                    "strokeWidth": 1.5,
                    "tooltip": None,
                    "aria": False,
                },
                "encoding": {"x": x, "y": y, "color": colour, "strokeDash": dash},
            },
        ],
    }
