"""Vega-Lite specifications of the page's plots, as plain dictionaries, and the JavaScript bundle that draws them.

The bundle is compiled for evaluation by Vega's expression interpreter, so the page needs no ``unsafe-eval``
(https://vega.github.io/vega/usage/interpreter/). Colours come from the page's style sheet when a plot is drawn.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import vl_convert

from servemark.records import write_atomically
from servemark.report import formatting
from servemark.report.columns import THROUGHPUT

PERCENTILES = ("p50", "p95", "p99", "mean")
SHAPES = {
    "circle": "M8,4.5A3.5,3.5 0 1 1 8,11.5A3.5,3.5 0 1 1 8,4.5Z",
    "square": "M4.8,4.8H11.2V11.2H4.8Z",
    "triangle-up": "M8,3.8L12,11.4H4Z",
    "diamond": "M8,3.4L12,8L8,12.6L4,8Z",
    "triangle-down": "M8,12.2L4,4.6H12Z",
    "cross": "M6.6,4H9.4V6.6H12V9.4H9.4V12H6.6V9.4H4V6.6H6.6Z",
    "triangle-right": "M12.2,8L4.6,12V4Z",
}
DASHES = ([1, 0], [6, 3], [2, 2], [8, 3, 2, 3])
COLOURS = 8
"""How many series colours the style sheet has (``--series-1`` ...); shapes and dashes keep later series apart."""

PER_DEVICE = "output_tokens_per_s_per_device"
THROUGHPUTS = {column.name: column.label for column in THROUGHPUT.columns}
"""A throughput to choose in the plot, beside the table's own, where deployments differ in their number of devices."""

SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
_LOG_FROM = 8
"""Loads that differ by this factor or more get a logarithmic axis: sweeps double from point to point."""


@dataclass(frozen=True)
class Panel:
    """The plots that share one horizontal axis: a workload by concurrency, or by offered request rate."""

    id: str
    label: str
    specs: Mapping[str, dict[str, Any]]


@cache
def bundle(cache_folder: Path | None = None) -> str:
    """Return Vega, Vega-Lite and vega-embed as one script that sets ``window.vegaEmbed``; no request to anywhere.

    Args:
        cache_folder: where the script is kept and found again, since making it takes a second.
    """
    kept = cache_folder and cache_folder / f"vega-{version('vl-convert-python')}.js"
    if kept and kept.exists():
        return kept.read_bytes().decode()
    script = str(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;"))
    if kept:
        # The page needs the script, not the copy.
        with contextlib.suppress(OSError):
            write_atomically(kept, script)
    return script


def series(names: Sequence[str]) -> list[dict[str, Any]]:
    """For each deployment its colour (1 to ``COLOURS``), shape and dash: the same in every plot and in the legend."""
    shapes = list(SHAPES)
    return [
        {
            "name": name,
            "index": index,
            "colour": index % COLOURS + 1,
            "shape": shapes[index % len(shapes)],
            "path": SHAPES[shapes[index % len(shapes)]],
            "dash": DASHES[index % len(DASHES)],
        }
        for index, name in enumerate(names)
    ]


def panels(rows: Sequence[Mapping[str, Any]], names: Sequence[str], throughputs: Sequence[str] = tuple(THROUGHPUTS)) -> list[Panel]:
    """Group accepted measurements (rows of the tidy table) that can share an axis, and plot each group.

    ``names`` are the deployments of the legend, in the order that gives each its look; ``throughputs`` the columns that
    the throughput plot can show.

    Points without concurrency and without rate have no place on an axis; the tables still show them.
    """
    groups: dict[tuple[str, str, int | None], list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["verdict"] == "INVALID":
            continue
        if row["request_rate_per_s"] is not None:
            groups.setdefault((row["workload"], "rate", row["concurrency"]), []).append(row)
        elif row["concurrency"] is not None:
            groups.setdefault((row["workload"], "concurrency", None), []).append(row)
    return [
        Panel(f"panel-{index}", _label(*key), _curves(group, names, key[1], throughputs))
        for index, (key, group) in enumerate(groups.items())
    ]


def throughputs(rows: Sequence[Mapping[str, Any]], accelerator: str) -> dict[str, str]:
    """Return what the throughput plot can show: column -> title.

    Per device only where accepted rows differ in devices, and these are GPUs: ranks on a CPU share it.
    """
    devices = {row["devices"] for row in rows if row["verdict"] != "INVALID"}
    if accelerator == "cpu" or len(devices) < 2 or None in devices:
        return THROUGHPUTS
    return THROUGHPUTS | {PER_DEVICE: "Output tokens/s per device"}


def _label(workload: str, axis: str, cap: int | None) -> str:
    if axis == "concurrency":
        return f"{workload}, by concurrency"
    return f"{workload}, by request rate" + ("" if cap is None else f", at most {cap} at once")


def _curves(rows: Sequence[Mapping[str, Any]], names: Sequence[str], axis: str, throughput: Sequence[str]) -> dict[str, dict[str, Any]]:
    specs = {"throughput": _curve([_per_device(row) for row in rows], names, axis, throughput, throughput)}
    for metric, title in formatting.METRICS.items():
        columns = [f"{metric}_{name}_ms" for name in PERCENTILES]
        if any(row[column] is not None for row in rows for column in columns):
            specs[metric] = _curve(rows, names, axis, PERCENTILES, columns, title=title)
    return specs


def _per_device(row: Mapping[str, Any]) -> dict[str, Any]:
    figure, devices = row["output_tokens_per_s"], row["devices"]
    return {**row, PER_DEVICE: figure / devices if figure is not None and devices else None}


def _curve(
    rows: Sequence[Mapping[str, Any]],
    names: Sequence[str],
    axis: str,
    choices: Sequence[str],
    columns: Sequence[str],
    title: str = "Throughput",
) -> dict[str, Any]:
    """Return one plot against the load: band (min to max), line (median), points; parameter ``choice`` picks the field."""
    across = "request_rate_per_s" if axis == "rate" else "concurrency"
    values = [
        {
            "deployment": row["deployment"],
            "load": row[across],
            "repetition": row["repetition"],
            "verdict": row["verdict"],
            "why": row["reasons"] or "",
            **{choice: row[column] for choice, column in zip(choices, columns, strict=True)},
        }
        for row in rows
    ]
    looks = series(names)
    domain = [look["name"] for look in looks]
    x = {"field": "load", "type": "quantitative", **_load_axis(sorted({value["load"] for value in values}), axis)}
    y = {"type": "quantitative", "title": None, "axis": {"tickCount": 5}}
    colour = {"field": "deployment", "type": "nominal", "scale": {"domain": domain}, "legend": None}
    shape = {**colour, "scale": {"domain": domain, "range": [look["shape"] for look in looks]}}
    dash = {**colour, "scale": {"domain": domain, "range": [look["dash"] for look in looks]}}
    suspect = "datum.verdict === 'SUSPECT'"
    unit = "ms" if columns[0].endswith("_ms") else "per second"
    tooltip = [
        {"field": "deployment", "title": "Deployment", "type": "nominal"},
        {"field": "load", "title": "Requests/s offered" if axis == "rate" else "Concurrency", "type": "quantitative"},
        {"field": "repetition", "title": "Repetition", "type": "quantitative"},
        {"field": "value", "title": f"{title} ({unit})", "type": "quantitative", "format": ",.4~r"},
        {"field": "verdict", "title": "Verdict", "type": "nominal"},
        {"field": "why", "title": "Reasons", "type": "nominal"},
    ]
    zoom = {
        "name": "zoom",
        "select": {
            "type": "interval",
            # A plain wheel and a finger keep scrolling the page.
            "zoom": "wheel![event.ctrlKey || event.metaKey]",
            "translate": "[pointerdown[event.pointerType !== 'touch'], window:pointerup] > window:pointermove!",
        },
        "bind": "scales",
    }
    layers: list[dict[str, Any]] = [
        {
            # Invisible: stretches the axis so that the highest point is not cut off.
            "mark": {"type": "rule", "opacity": 0, "tooltip": None, "aria": False},
            "encoding": {"y": {**y, "field": "headroom", "aggregate": "max"}},
        },
        {
            "mark": {"type": "area", "opacity": 0.16, "clip": True, "tooltip": None, "aria": False},
            "encoding": {
                "x": x,
                "y": {**y, "field": "value", "aggregate": "min", "stack": None},
                "y2": {"field": "value", "aggregate": "max"},
                "color": colour,
            },
        },
        {
            "mark": {"type": "line", "strokeWidth": 2, "clip": True, "tooltip": None, "aria": False},
            "encoding": {
                "x": x,
                "y": {**y, "field": "value", "aggregate": "median"},
                "color": colour,
                "strokeDash": dash,
            },
        },
        {
            "mark": {"type": "point", "size": 60, "strokeWidth": 2, "opacity": 1, "clip": True},
            "params": [zoom],
            "encoding": {
                "x": x,
                "y": {**y, "field": "value"},
                "stroke": colour,
                "fill": colour,
                "shape": shape,
                "fillOpacity": {"condition": {"test": suspect, "value": 0}, "value": 1},
                "tooltip": tooltip,
            },
        },
        {
            "mark": {"type": "text", "dx": 8, "align": "left", "fontSize": 14, "fontWeight": 700, "tooltip": None},
            "encoding": {
                "x": x,
                "y": {**y, "field": "value"},
                "text": {"condition": {"test": suspect, "value": "?"}, "value": ""},
            },
        },
    ]
    return {
        "$schema": SCHEMA,
        "description": f"{title} against {'offered request rate' if axis == 'rate' else 'concurrency'}, one line a "
        "deployment. The table of medians holds the same numbers.",
        "width": "container",
        "height": 300 if title == "Throughput" else 210,
        "autosize": {"type": "fit-x", "contains": "padding"},
        "data": {"values": values},
        "params": [{"name": "choice", "value": choices[0]}, {"name": "hidden", "value": []}],
        "transform": [
            {"calculate": "datum[choice]", "as": "value"},
            {"filter": "isValid(datum.value) && indexof(hidden, datum.deployment) < 0"},
            {"calculate": "datum.value * 1.1", "as": "headroom"},
        ],
        "layer": layers,
    }


def _load_axis(loads: Sequence[float], axis: str) -> dict[str, Any]:
    logarithmic = loads[0] > 0 and loads[-1] / loads[0] >= _LOG_FROM
    scale = {"type": "log", "base": 2} if logarithmic else {"type": "linear", "zero": False}
    ticks = {"values": list(loads)} if len(loads) <= 12 else {"tickCount": 8}
    return {
        "title": "Offered requests per second" if axis == "rate" else "Concurrent requests",
        "scale": {**scale, "nice": False, "padding": 22},
        "axis": {"format": "~r", "grid": False, "labelOverlap": "greedy", **ticks},
    }
