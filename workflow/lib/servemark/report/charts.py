"""The page's plots: Vega-Lite specifications from ``templates/report/plots.yaml``, and the JavaScript bundle that draws them.

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
from typing import Any, cast

import vl_convert
import yaml

from servemark.records import write_atomically
from servemark.report import formatting
from servemark.report.columns import THROUGHPUT

TEMPLATES = Path(__file__).parents[3] / "templates"
PERCENTILES = ("p50", "p95", "p99", "mean")
SHAPES = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "triangle-right")
DASHES = ([1, 0], [6, 3], [2, 2], [8, 3, 2, 3])
COLOURS = 8
"""How many series colours the style sheet has (``--series-1`` ...); shapes and dashes keep later series apart."""

PER_DEVICE = "output_tokens_per_s_per_device"
"""A throughput to choose in the plot, next to the table's own, where deployments differ in their number of devices."""
THROUGHPUTS = {column.name: column.label for column in THROUGHPUT.columns}
_LOG_FROM = 8
"""Loads that differ by this factor or more get a logarithmic axis: sweeps double from point to point."""


@dataclass(frozen=True)
class Panel:
    """The plots that share one horizontal axis, each with its rows: a workload by concurrency, or by offered request rate."""

    id: str
    label: str
    specs: Mapping[str, dict[str, Any]]
    values: Mapping[str, list[dict[str, Any]]]


@cache
def bundle(cache_folder: Path | None = None) -> str:
    """Return Vega, Vega-Lite and vega-embed as one script that sets ``window.vegaEmbed`` and requests nothing.

    Args:
        cache_folder: keeps the script for the next report, because making it takes a second.
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


def plot(name: str, **parts: Any) -> dict[str, Any]:
    """Return a specification of ``plots.yaml`` without data, with ``parts`` in place of its texts that begin with ``$``."""
    return cast("dict[str, Any]", _filled(_plots()[name], parts))


@cache
def _plots() -> dict[str, Any]:
    return cast("dict[str, Any]", yaml.safe_load((TEMPLATES / "report" / "plots.yaml").read_text(encoding="utf-8")))


def _filled(node: Any, parts: Mapping[str, Any]) -> Any:
    if isinstance(node, dict):
        return {key: _filled(value, parts) for key, value in node.items()}
    if isinstance(node, list):
        return [_filled(value, parts) for value in node]
    return parts[node[1:]] if isinstance(node, str) and node.startswith("$") else node


def series(names: Sequence[str]) -> list[dict[str, Any]]:
    """Return the colour (1 to ``COLOURS``), shape and dash of each deployment: the same in every plot and in the legend."""
    return [
        {"name": name, "index": at, "colour": at % COLOURS + 1, "shape": SHAPES[at % len(SHAPES)], "dash": DASHES[at % len(DASHES)]}
        for at, name in enumerate(names)
    ]


def looks(names: Sequence[str]) -> dict[str, Any]:
    """Return the parts of a plot that tell deployments apart."""
    found = series(names)
    dashes, shapes = [look["dash"] for look in found], [look["shape"] for look in found]
    return {"by": "deployment", "names": list(names), "dashes": dashes, "shapes": shapes}


def panels(rows: Sequence[Mapping[str, Any]], names: Sequence[str], throughputs: Sequence[str] = tuple(THROUGHPUTS)) -> list[Panel]:
    """Group accepted rows of the tidy table that can share an axis, and plot each group.

    Points without concurrency and without rate have no place on an axis; the tables still show them. ``names`` are the deployments of
    the legend, in the order that gives each its look; ``throughputs`` the columns that the throughput plot can show.
    """
    groups: dict[tuple[str, bool, int | None], list[Mapping[str, Any]]] = {}
    for row in rows:
        by_rate = row["request_rate_per_s"] is not None
        if row["verdict"] != "INVALID" and (by_rate or row["concurrency"] is not None):
            groups.setdefault((row["workload"], by_rate, row["concurrency"] if by_rate else None), []).append(row)
    found: list[Panel] = []
    for (workload, by_rate, cap), group in groups.items():
        label = f"{workload}, by {'request rate' if by_rate else 'concurrency'}" + ("" if cap is None else f", at most {cap} at once")
        found.append(Panel(f"panel-{len(found)}", label, *_curves(group, names, by_rate, throughputs)))
    return found


def throughputs(rows: Sequence[Mapping[str, Any]], accelerator: str) -> dict[str, str]:
    """Return what the throughput plot can show: column -> title.

    Per device only where accepted rows differ in devices, and these are GPUs: ranks on a CPU share it.
    """
    devices = {row["devices"] for row in rows if row["verdict"] != "INVALID"}
    if accelerator == "cpu" or len(devices) < 2 or None in devices:
        return THROUGHPUTS
    return THROUGHPUTS | {PER_DEVICE: "Output tokens/s per device"}


def _curves(
    rows: Sequence[Mapping[str, Any]], names: Sequence[str], by_rate: bool, throughputs: Sequence[str]
) -> tuple[dict[str, dict[str, Any]], dict[str, list[dict[str, Any]]]]:
    """Return the throughput plot and one of each latency, against the load, and the rows of each."""
    across = "request_rate_per_s" if by_rate else "concurrency"
    shared = {
        **looks(names),
        **_load_axis(sorted({row[across] for row in rows})),
        "x_title": "Offered requests per second" if by_rate else "Concurrent requests",
        "load_title": "Requests/s offered" if by_rate else "Concurrency",
    }
    against = "offered request rate" if by_rate else "concurrency"
    specs, values = {}, {}
    plots = {"throughput": {name: name for name in throughputs}}
    plots |= {metric: {name: f"{metric}_{name}_ms" for name in PERCENTILES} for metric in formatting.METRICS}
    for metric, choices in plots.items():
        throughput = metric == "throughput"
        if not throughput and all(row[column] is None for row in rows for column in choices.values()):
            continue
        title, unit = ("Throughput", "per second") if throughput else (formatting.METRICS[metric], "ms")
        specs[metric] = plot(
            "curve",
            **shared,
            choice=next(iter(choices)),
            height=300 if throughput else 210,
            value_title=f"{title} ({unit})",
            description=f"{title} against {against}, one line a deployment. The table of medians holds the same numbers.",
        )
        values[metric] = [
            {name: row[name] for name in ("deployment", "repetition", "verdict")}
            | {"load": row[across], "why": row["reasons"] or ""}
            | {choice: _per_device(row) if column == PER_DEVICE else row[column] for choice, column in choices.items()}
            for row in rows
        ]
    return specs, values


def _per_device(row: Mapping[str, Any]) -> float | None:
    figure, devices = row["output_tokens_per_s"], row["devices"]
    return figure / devices if figure is not None and devices else None


def _load_axis(loads: Sequence[float]) -> dict[str, Any]:
    logarithmic = loads[0] > 0 and loads[-1] / loads[0] >= _LOG_FROM
    scale = {"type": "log", "base": 2} if logarithmic else {"type": "linear", "zero": False}
    ticks = {"values": list(loads)} if len(loads) <= 12 else {"tickCount": 8}
    return {
        "x_scale": {**scale, "nice": False, "padding": 22},
        "x_axis": {"format": "~r", "grid": False, "labelOverlap": "greedy", **ticks},
    }
