"""The report page: one HTML file that needs nothing else, asks for nothing and runs only its own scripts."""

from __future__ import annotations

import base64
import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from servemark.report import (
    attempted,
    charts,
    comparison,
    excerpts,
    histogram,
    places,
    roofline,
    router_share,
    starting,
    timelines,
    views,
    words,
)
from servemark.report.data import PageData
from servemark.report.gaps import gaps, made_good
from servemark.report.table import aggregate, ordered, rows, tidy

TEMPLATES = Path(__file__).parents[3] / "templates"

_JSON_ESCAPES = {ord("<"): "\\u003c", ord(">"): "\\u003e", ord("&"): "\\u0026"}


def render(data: PageData, *, bundle: str | None = None) -> str:
    """The page as HTML text; write it as UTF-8.

    The content security policy names the sha256 of each inline script and style, so nothing that data could smuggle
    into the page would run. Data reaches the scripts as JSON in a block that the browser does not execute.

    Args:
        bundle: the script that draws the plots; by default Vega's, which takes a second to make. Who only reads the figures
            gives an empty one.
    """
    bundle = charts.bundle() if bundle is None else bundle
    frame = tidy(data.measurements, data.accounts.values())
    measured = rows(frame)
    shown = sorted({row["deployment"] for row in measured if row["verdict"] != "INVALID"})
    points = views.medians(aggregate(frame))
    headline = views.headlines(points, data)
    found = gaps(data)
    later = made_good(data, found)
    groups = comparison.groups(points, data)
    shares, unknown = roofline.shares(points, data)
    moments = timelines.shown(data.measurements, data.timelines)
    throughputs = charts.throughputs(measured, data.hardware.accelerator)
    panels = charts.panels(measured, shown, tuple(throughputs))
    style, script = (
        (TEMPLATES / "report.css").read_text(encoding="utf-8"),
        (TEMPLATES / "report.js").read_text(encoding="utf-8"),
    )
    drawings = {
        "series": shown,
        "panels": {panel.id: panel.specs for panel in panels},
        "startup": starting.spec(list(data.startups.values())),
        "distribution": histogram.drawings(data.distributions, shown),
        "timeline": timelines.drawings(moments),
    }
    # Markup marks what needs no escaping: our own files, the pinned bundle, and JSON that _json has escaped.
    page = _template().render(
        data=data,
        title=f"{data.run}: servemark report",
        summary=views.summary(data, headline, len(found)),
        verdicts=views.verdicts(data),
        headline=headline,
        points=points,
        measured=[
            {**row, "record": record, "load": words.load(record.concurrency, record.request_rate)}
            for row, record in zip(measured, ordered(data.measurements), strict=True)
        ],
        gaps=found,
        panels=panels,
        throughputs=throughputs,
        places=places.places(data),
        jobs=places.jobs(data),
        balance=places.balance(data),
        replica_startups=places.replica_startups(data),
        attempts=attempted.rows(data.attempts, data.measurements, data.rejected, [*found, *later]),
        rejected=attempted.rejected_rows(data.rejected, [*found, *later]),
        made_good=later,
        excerpts={gap.anchor: data.excerpts.get(excerpts.key(gap.failure)) for gap in (*found, *later)},
        groups=groups,
        alone=comparison.alone(data, groups),
        device=comparison.device(data),
        unit=lambda count: comparison.unit(data, count),
        router_pairs=router_share.pairs(points, data),
        distributions=data.distributions,
        loads_left_out=histogram.left_out(data.distributions, points),
        heaviest=histogram.heaviest(data.distributions),
        timelines=moments,
        timelines_left_out=len(moments) < len(data.timelines),
        busiest=timelines.busiest(moments),
        roofline=shares,
        roofline_unknown=unknown,
        series=charts.series(shown),
        looks={look["name"]: look for look in charts.series(shown)},
        drawings=_json(drawings),
        hardware_line=views.hardware_line(data.hardware),
        hardware_facts=views.hardware_facts(data.hardware),
        clients=views.clients(data),
        startup=views.startup_table(data),
        memory=views.memory(data),
        config=yaml.safe_dump(words.plain(data.config), sort_keys=False, allow_unicode=True, width=100),
        style=Markup(style),  # noqa: S704 - our own file
        bundle=Markup(bundle),  # noqa: S704 - our own file
        script=Markup(script),  # noqa: S704 - our own file
        policy=_policy([bundle, script], [style]),
    )
    return page.lstrip()


@cache
def _template() -> Any:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {"words": words, "views": views}
    environment.filters |= {
        "number": words.number,
        "quantity": words.quantity,
        "plural": words.plural,
        "seconds": words.seconds,
        "clock": words.clock,
        "size": words.size,
        "yaml": lambda value: yaml.safe_dump(words.plain(value), sort_keys=False, allow_unicode=True, width=100),
    }
    return environment.get_template("report.html.j2")


def _json(value: Any) -> Markup:
    """JSON for a ``<script type="application/json">`` block: nothing in it can end the block or open a comment."""
    return Markup(json.dumps(value, allow_nan=False).translate(_JSON_ESCAPES))  # noqa: S704 - escaped in this line


def _policy(scripts: list[str], styles: list[str]) -> str:
    """Content security policy: no request to anywhere, and only these inline scripts and styles.

    https://www.w3.org/TR/CSP3/#match-element-to-source-list
    """
    return (
        f"default-src 'none'; script-src {_hashes(scripts)}; style-src {_hashes(styles)}; "
        "base-uri 'none'; form-action 'none'"
    )


def _hashes(texts: list[str]) -> str:
    digests = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts)
    return " ".join(f"'sha256-{digest}'" for digest in digests)
