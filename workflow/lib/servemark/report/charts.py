"""Make the Vega-Lite specifications of the plots from ``templates/report/plots.yaml``, and the script that draws them.

The script uses Vega's expression interpreter, so the report needs no ``unsafe-eval`` (https://vega.github.io/vega/usage/interpreter/).
"""

import hashlib
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import vl_convert

from servemark.errors import ServemarkError
from servemark.files.yaml_data import read_yaml
from servemark.records import write_atomically
from servemark.report import formatting
from servemark.report.columns import LOAD, STEADY, THROUGHPUT

TEMPLATES = Path(__file__).parents[3] / "templates"
PERCENTILES = ("p50", "p95", "p99", "mean")
SHAPES = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "triangle-right")
DASHES = ([1, 0], [6, 3], [2, 2], [8, 3, 2, 3])
COLOURS = 8
"""Series colours in the style sheet (``--series-1`` ...). Shapes and dashes distinguish more series."""

PER_DEVICE = "output_tokens_per_s_per_device"
"""A choice of the throughput plot, offered if deployments have different numbers of devices."""
THROUGHPUTS = {column.name: column.label for column in THROUGHPUT.columns}
_SNIPPET = "window.vegaEmbed = vegaEmbed;"
_LOG_FROM = 8
"""The axis is logarithmic if the highest load is at least this many times the lowest."""


@dataclass(frozen=True)
class Panel:
    """The plots of one workload by concurrency or by request rate, which share one horizontal axis, and their rows.

    ``values`` has one row per repetition, ``bars`` one per load point that has intervals: each choice with its two ends.
    """

    id: str
    label: str
    specs: Mapping[str, dict[str, Any]]
    values: Mapping[str, list[dict[str, Any]]]
    bars: Mapping[str, list[dict[str, Any]]]


@cache
def bundle() -> str:
    """Return Vega, Vega-Lite and vega-embed as one script that sets ``window.vegaEmbed`` and sends no request.

    Making it takes a second, so servemark keeps it in the interpreter's environment if it can write there.
    """
    digest = hashlib.sha256(f"{version('vl-convert-python')} {_SNIPPET}".encode()).hexdigest()
    kept = Path(sys.prefix, "share", "servemark", f"vega-{digest[:12]}.js")
    with suppress(OSError):
        return kept.read_text(encoding="utf-8")
    made = str(vl_convert.javascript_bundle(_SNIPPET))
    with suppress(OSError, ServemarkError):
        write_atomically(kept, made)
    return made


def plot(name: str, **parts: Any) -> dict[str, Any]:
    """Return a specification of ``plots.yaml`` without data. ``parts`` replaces the texts that begin with ``$``."""
    return cast("dict[str, Any]", _filled(_plots()[name], parts))


@cache
def _plots() -> dict[str, Any]:
    return cast("dict[str, Any]", read_yaml(TEMPLATES / "report" / "plots.yaml"))


def _filled(node: Any, parts: Mapping[str, Any]) -> Any:
    if isinstance(node, dict):
        return {key: _filled(value, parts) for key, value in node.items()}
    if isinstance(node, list):
        return [_filled(value, parts) for value in node]
    return parts[node[1:]] if isinstance(node, str) and node.startswith("$") else node


def series(names: Sequence[str]) -> list[dict[str, Any]]:
    """Return the colour (1 to ``COLOURS``), shape and dash of each deployment, for all plots and the legend."""
    return [
        {"name": name, "index": at, "colour": at % COLOURS + 1, "shape": SHAPES[at % len(SHAPES)], "dash": DASHES[at % len(DASHES)]}
        for at, name in enumerate(names)
    ]


def looks(names: Sequence[str]) -> dict[str, Any]:
    """Return the parts of a plot that distinguish deployments."""
    found = series(names)
    dashes, shapes = [look["dash"] for look in found], [look["shape"] for look in found]
    return {"by": "deployment", "names": list(names), "dashes": dashes, "shapes": shapes}


def panels(
    rows: Sequence[Mapping[str, Any]],
    names: Sequence[str],
    throughputs: Sequence[str] = tuple(THROUGHPUTS),
    points: Sequence[Mapping[str, Any]] = (),
) -> list[Panel]:
    """Return one panel for each group of accepted rows of the tidy table that can share an axis.

    A load point without concurrency and without request rate is only in the tables.

    Args:
        names: the deployments of the legend, in its order.
        throughputs: the columns from which the throughput plot lets the reader choose.
        points: rows of ``views.medians``, with the intervals.
    """
    groups: dict[tuple[str, bool, int | None], list[Mapping[str, Any]]] = {}
    for row in rows:
        by_rate = row["request_rate_per_s"] is not None
        if row["verdict"] != "INVALID" and (by_rate or row["concurrency"] is not None):
            groups.setdefault((row["workload"], by_rate, row["concurrency"] if by_rate else None), []).append(row)
    found: list[Panel] = []
    for (workload, by_rate, cap), group in groups.items():
        label = f"{workload}, by {'request rate' if by_rate else 'concurrency'}" + ("" if cap is None else f", at most {cap} at once")
        # Rows of a group differ in deployment and load only, and the curves of a large run show some of them.
        drawn = {tuple(row[name] for name in LOAD): row["devices"] for row in group}
        mine = [{**point, "devices": drawn[at]} for point in points if (at := tuple(point[name] for name in LOAD)) in drawn]
        found.append(Panel(f"panel-{len(found)}", label, *_curves(group, names, by_rate, throughputs, mine)))
    return found


def throughputs(rows: Sequence[Mapping[str, Any]], accelerator: str) -> dict[str, str]:
    """Return the choices of the throughput plot: column -> title.

    Throughput per device is a choice if accepted rows have different numbers of GPUs.
    """
    devices = {row["devices"] for row in rows if row["verdict"] != "INVALID"}
    if accelerator == "cpu" or len(devices) < 2 or None in devices:
        return THROUGHPUTS
    return THROUGHPUTS | {PER_DEVICE: "Output tokens/s per device"}


def _curves(
    rows: Sequence[Mapping[str, Any]],
    names: Sequence[str],
    by_rate: bool,
    throughputs: Sequence[str],
    points: Sequence[Mapping[str, Any]],
) -> tuple[dict[str, dict[str, Any]], dict[str, list[dict[str, Any]]], dict[str, list[dict[str, Any]]]]:
    """Return the plots of throughput and of each latency against the load, the rows and the intervals of each.

    A row and its interval hold each choice twice: of the steady state under a name that begins with ``STEADY``, and of the whole run.
    """
    across = "request_rate_per_s" if by_rate else "concurrency"
    shared = {
        **looks(names),
        **_load_axis(sorted({row[across] for row in rows})),
        "x_title": "Offered requests per second" if by_rate else "Concurrent requests",
        "load_title": "Requests/s offered" if by_rate else "Concurrency",
    }
    against = "offered request rate" if by_rate else "concurrency"
    specs, values, bars = {}, {}, {}
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
            choice=STEADY + next(iter(choices)),
            height=300 if throughput else 210,
            value_title=f"{title} ({unit})",
            description=f"{title} against {against}, one line per deployment. The table of medians contains the same numbers.",
        )
        values[metric] = [
            {name: row[name] for name in ("deployment", "repetition", "verdict")}
            | {"load": row[across], "why": row["reasons"] or ""}
            | {prefix + choice: _value(row, prefix, column) for prefix in (STEADY, "") for choice, column in choices.items()}
            for row in rows
        ]
        ends = (
            (
                point,
                {
                    prefix + choice: [_value(point, prefix, column, end) for end in ("_low", "_high")]
                    for prefix in (STEADY, "")
                    for choice, column in choices.items()
                },
            )
            for point in points
        )
        bars[metric] = [
            {"deployment": point["deployment"], "load": point[across]} | {choice: end for choice, end in of.items() if None not in end}
            for point, of in ends
            if any(None not in end for end in of.values())
        ]
    return specs, values, bars


def _value(row: Mapping[str, Any], prefix: str, column: str, end: str = "") -> float | None:
    if column != PER_DEVICE:
        return cast("float | None", row[f"{prefix}{column}{end}"])
    output, devices = row[f"{prefix}output_tokens_per_s{end}"], row["devices"]
    return output / devices if output is not None and devices else None


def _load_axis(loads: Sequence[float]) -> dict[str, Any]:
    logarithmic = loads[0] > 0 and loads[-1] / loads[0] >= _LOG_FROM
    scale = {"type": "log", "base": 2} if logarithmic else {"type": "linear", "zero": False}
    ticks = {"values": list(loads)} if len(loads) <= 12 else {"tickCount": 8}
    return {
        "x_scale": {**scale, "nice": False, "padding": 22},
        "x_axis": {"format": "~r", "grid": False, "labelOverlap": "greedy", **ticks},
    }
