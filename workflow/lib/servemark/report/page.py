"""Render the report: one HTML file that needs no other file, sends no request and runs only its own scripts.

Cells and plots of measurements are made from one data block (``content``). ``servemark verify`` makes the data block of an archive again
and compares it with the one in the report. So the block holds all numbers, verdicts and reasons.
"""

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from servemark.machine import visible_gpus
from servemark.measurement import accuracy, search
from servemark.measurement.intervals import LEAST
from servemark.records.restarts import configured
from servemark.report import (
    accuracies,
    charts,
    columns,
    comparable,
    comparison,
    distributions,
    energy,
    formatting,
    packed,
    starting,
    targets,
    thinning,
    timelines,
    views,
)
from servemark.report.charts import TEMPLATES
from servemark.report.columns import LOAD
from servemark.report.gaps import attempt_rows, gaps, made_good, rejected_rows
from servemark.report.gather import RunRecords
from servemark.report.measured import ordered
from servemark.report.table import aggregate, rows, tidy

BLOCK_ID = "servemark-data"
"""The id of the HTML element that holds the data block as JSON."""
_MEASUREMENT = (
    *LOAD,
    *("repetition", "verdict", "requests_asked", "requests_completed"),
    *(column.name for column in columns.VERDICTS),
    *("steady_requests", "steady_cycles", "steady_missing", "steady_too_few", "steady_waves"),
    *("steady_ttft_p95_low_ms", "steady_ttft_p95_high_ms", "in_flight_most", "peak_output_tokens_per_s"),
)
_RANGED = (*columns.MEDIANS, *columns.STEADY_MEDIANS)
_POINT = (
    *LOAD,
    *("verdict", "repetitions_asked", "repetitions_accepted", "steady_missing", "steady_too_few"),
    *(f"{column.name}_{statistic}" for column in _RANGED for statistic in ("median", "min", "max")),
    *(f"{column.name}_median" for column in columns.SIDE_MEDIANS),
)
_INTERVAL = (*LOAD, *(f"{column.name}_{part}" for column in _RANGED for part in ("low", "high", "repetitions")))
_OPTIONAL = re.compile(r"(?:</t[dhr]>\s*|\s+)(?=<t[dhr][ >]|</t(?:r|body|head)>)")
"""The end tags of rows and cells that HTML allows to omit (https://html.spec.whatwg.org/#optional-tags), and the space between tags."""
_JSON_ESCAPES = {ord("<"): "\\u003c", ord(">"): "\\u003e", ord("&"): "\\u0026"}


@dataclass(frozen=True)
class Content:
    """What the report shows of the measurements.

    Attributes:
        block: the data block, as JSON values. ``packed.unpack`` returns its tables as rows.
        specs: the specifications of the plots, without data.
        points: the medians of all load points (``views.medians``), including those that the report leaves out.
        stateless: of how many measurements the curves show (``shown``) the steady state is ``missing``, has too few requests (``few``),
            or has a p95 of the TTFT from requests that start in ``waves``.
        fronts: the workloads with a plot of throughput against the speed of one user.
        busiest: position of the timeline with the most output tokens per second.
    """

    block: dict[str, Any]
    specs: dict[str, Any]
    shown: thinning.Selection
    points: list[dict[str, Any]]
    panels: list[charts.Panel]
    throughputs: Mapping[str, str]
    bins: list[distributions.Distribution]
    stateless: Mapping[str, int]
    fronts: list[str]
    busiest: int


def content(data: RunRecords, whole: bool | None = None) -> Content:
    """Return the data block of a run, the specifications of its plots, and the values that both share.

    Args:
        whole: show every measurement. By default, show all if there are at most ``thinning.WHOLE``.
    """
    frame, items = tidy(data.measurements, data.accounts.values(), data.attainments), ordered(data.measurements)
    points = views.medians(aggregate(frame))
    accepted = sorted({configured(item.deployment) for item in items if item.verdict != "INVALID"})
    shown = thinning.select(points, accepted, whole=len(items) <= thinning.WHOLE if whole is None else whole)
    throughputs = charts.throughputs(rows(frame[["verdict", "devices"]]), data.machine.accelerator)
    panels = charts.panels(rows(frame[shown.draws(items)]), shown.series, tuple(throughputs), points)
    startups = [item for name, item in data.startups.items() if shown.plots(configured(name))]
    bins = shown.distributions(data.distributions)
    moments = timelines.shown([item for item in items if shown.plots(configured(item.deployment))], data.timelines)
    listed = zip(rows(frame), items, shown.lists(items), strict=True)
    block = {
        "whole": shown.whole,
        "verdicts": views.verdicts(data),
        "reasons": views.objections(items),
        "points": packed.pack(shown.points, _POINT),
        "intervals": packed.pack(shown.points, _INTERVAL),
        "measurements": [
            {name: row[name] for name in _MEASUREMENT} | {"reasons": formatting.reasons(item)} for row, item, kept in listed if kept
        ],
        "curves": {panel.id: {metric: packed.pack(values) for metric, values in panel.values.items()} for panel in panels},
        "bars": {panel.id: panel.bars for panel in panels},
        "distributions": [{metric: asdict(of) for metric, of in item.metrics.items()} for item in bins],
        "timelines": [row for _, row in moments],
        "startup": starting.bars(startups),
    }
    if checked := accuracies.rows(data.accuracy, accuracy.minima(data.config)):
        block["accuracy"] = checked
    specs = {
        "series": shown.series,
        "panels": {panel.id: panel.specs for panel in panels},
        "distribution": distributions.specs(shown.series) if bins else {},
        "timeline": timelines.specs() if moments else {},
        "startup": starting.spec(startups),
    }
    fronts = targets.pareto(shown.points, data, shown.series)
    block["pareto"] = {f"pareto-{at}": drawn for at, (_, _, drawn) in enumerate(fronts)}
    specs["pareto"] = {f"pareto-{at}": spec for at, (_, spec, _) in enumerate(fronts)}
    busiest = max(range(len(moments)), key=lambda index: moments[index][0].output_throughput or 0.0, default=0)
    drawn = [row for row in rows(frame[shown.draws(items)]) if row["verdict"] != "INVALID"]
    stateless = {
        "shown": len(drawn),
        "missing": sum(row["steady_requests"] is None for row in drawn),
        "few": sum(row["steady_too_few"] is not None for row in drawn),
        "waves": sum(starts_in_waves(row) for row in drawn),
    }
    return Content(
        packed.rounded(block), specs, shown, points, panels, throughputs, bins, stateless, [workload for workload, _, _ in fronts], busiest
    )


def starts_in_waves(row: Mapping[str, Any]) -> bool:
    """Return whether the requests of a measurement start in waves, so that its p95 of the TTFT has no interval."""
    return row["steady_ttft_p95_ms"] is not None and row["steady_waves"] is not None and row["steady_ttft_p95_low_ms"] is None


def render(data: RunRecords, *, bundle: str | None = None, whole: bool | None = None) -> str:
    """Return the report as HTML text, to be written as UTF-8.

    The content security policy names the sha256 of each inline script and style, so the browser runs no script that data might contain.
    Data reaches the scripts as JSON in elements that the browser does not execute.

    Args:
        bundle: the script that draws the plots. By default Vega's, which takes a second to make.
        whole: as for ``content``.
    """
    made = content(data, whole)
    block, shown, points = packed.unpack(made.block), made.shown, made.points
    headline = views.headlines(points, data)
    found = gaps(data)
    later = made_good(data, found)
    shares, unknown = comparison.shares(points, data)
    return document(
        "report.html.j2",
        made,
        bundle,
        data=data,
        shown=shown,
        verdicts=block["verdicts"],
        headline=[{**group, "cards": shown.cards(group["cards"])} for group in headline],
        points=_with_load(point | interval for point, interval in zip(block["points"], block["intervals"], strict=True)),
        rounded=comparable.rounded(data),
        measured=_with_load(block["measurements"]),
        objections=block["reasons"],
        accuracy=block.get("accuracy", ()),
        gaps=shown.first(found),
        gap_count=len(found),
        places=[place for place in views.places(data) if shown.plots(place["deployment"])],
        balance=[row for row in views.balance(data) if shown.shows(row)],
        attempts=attempt_rows(data, [*found, *later]),
        rejected=rejected_rows(shown.first(data.rejected), [*found, *later]),
        made_good=later,
        groups=comparison.groups(points, data),
        router_pairs=[pair for pair in comparison.pairs(points, data) if shown.shows(pair.router)],
        loads_left_out=distributions.left_out(made.bins, points),
        heaviest=distributions.heaviest(made.bins),
        lengths=distributions.lengths(made.bins),
        timelines=_with_load(block["timelines"]),
        roofline=[share for share in shares if shown.shows(share.point)],
        roofline_unknown=unknown,
        looks={look["name"]: look for look in charts.series(shown.series)},
        energy=[row for row in energy.rows(points, data) if shown.shows(row)],
        prices=energy.prices(data),
        targets=targets.workloads(points, data),
        clients=[row for row in views.clients(data) if shown.shows(row)],
    )


def document(template: str, made: Content, bundle: str | None = None, **values: Any) -> str:
    """Return an offline page: a template with these values, the data block, the specifications of its plots, style and scripts.

    Args:
        bundle: as for ``render``.
    """
    bundle = charts.bundle() if bundle is None else bundle
    style, script = ((TEMPLATES / name).read_text(encoding="utf-8") for name in ("report.css", "report.js"))
    # Markup marks text that needs no escaping: our own files, the pinned bundle, and JSON that _json has escaped.
    page = _template(template).render(
        made=made,
        **values,
        block_id=BLOCK_ID,
        block=_json(made.block),
        drawings=_json(made.specs),
        style=Markup(style),  # noqa: S704 - our own file
        bundle=Markup(bundle),  # noqa: S704 - our own file
        script=Markup(script),  # noqa: S704 - our own file
        # No requests, and only these inline scripts and styles: https://www.w3.org/TR/CSP3/#match-element-to-source-list
        policy=f"default-src 'none'; script-src {_hashes(bundle, script)}; style-src {_hashes(style)}; base-uri 'none'; form-action 'none'",
    )
    return str(page.lstrip())


def _with_load(found: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return rows of the data block with their load in words."""
    return [{**row, "load": formatting.load(row["concurrency"], row["request_rate_per_s"])} for row in found]


@cache
def _template(name: str) -> Any:
    loader = FileSystemLoader(TEMPLATES)
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    modules = {"columns": columns, "comparison": comparison, "LEAST": LEAST, "starting": starting, "views": views}
    environment.globals |= {**modules, "words": formatting, "hiding": visible_gpus.hiding, "words_of": search.words}
    names = ("number", "quantity", "plural", "seconds", "clock", "size")
    environment.filters |= {name: getattr(formatting, name) for name in names}
    # Tables are most of a large report, and the omitted end tags a tenth of it.
    environment.filters["tight"] = lambda table: Markup(_OPTIONAL.sub("", table))  # noqa: S704 - removes only tags and space
    # "count" is Jinja's own name for the length.
    environment.filters["counted"] = formatting.count
    environment.filters["yaml"] = lambda value: yaml.safe_dump(formatting.plain(value), sort_keys=False, allow_unicode=True, width=100)
    return environment.get_template(name)


def _json(value: Any) -> Markup:
    """Return JSON for a ``<script type="application/json">`` element. It cannot end the element or open a comment."""
    return Markup(json.dumps(value, allow_nan=False, separators=(",", ":")).translate(_JSON_ESCAPES))  # noqa: S704 - escaped in this line


def _hashes(*texts: str) -> str:
    digests = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts)
    return " ".join(f"'sha256-{digest}'" for digest in digests)
