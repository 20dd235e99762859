"""The report page: one HTML file that needs nothing else, asks for nothing and runs only its own scripts."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from servemark.report import (
    attempts_section,
    charts,
    columns,
    comparison,
    excerpts,
    formatting,
    histogram,
    nodes_section,
    roofline,
    router_share,
    timelines,
    views,
)
from servemark.report import block as blocks
from servemark.report.data import PageData
from servemark.report.gaps import gaps, made_good

TEMPLATES = Path(__file__).parents[3] / "templates"

_JSON_ESCAPES = {ord("<"): "\\u003c", ord(">"): "\\u003e", ord("&"): "\\u0026"}


def render(data: PageData, *, bundle: str | None = None, whole: bool | None = None) -> str:
    """Return the page as HTML text; write it as UTF-8.

    The content security policy names the sha256 of each inline script and style, so nothing that data could smuggle
    into the page would run. Data reaches the scripts as JSON in blocks that the browser does not execute. The cells and plots of
    measurements are made of one of them (``block.content``), which ``servemark verify`` compares.

    Args:
        bundle: the script that draws the plots; by default Vega's, which takes a second to make.
        whole: show every measurement; by default, where there are at most ``thinning.WHOLE``.
    """
    bundle = charts.bundle() if bundle is None else bundle
    made = blocks.content(data, whole)
    block, shown, points, bins = blocks.expanded(made.block), made.shown, made.points, made.bins
    headline = views.headlines(points, data)
    found = gaps(data)
    later = made_good(data, found)
    groups = comparison.groups(points, data)
    shares, unknown = roofline.shares(points, data)
    style, script = (
        (TEMPLATES / "report.css").read_text(encoding="utf-8"),
        (TEMPLATES / "report.js").read_text(encoding="utf-8"),
    )
    # Markup marks what needs no escaping: our own files, the pinned bundle, and JSON that _json has escaped.
    page = _template().render(
        data=data,
        title=f"{data.run}: servemark report",
        summary=views.summary(data, headline, len(found)),
        verdicts=block["verdicts"],
        headline=[{**group, "cards": shown.cards(group["cards"])} for group in headline],
        shown=shown,
        points=_with_load(block["points"]),
        measured=_with_load(block["measurements"]),
        objections=block["reasons"],
        explained=views.explained(data.measurements),
        gaps=shown.first(found),
        gap_count=len(found),
        panels=made.panels,
        throughputs=made.throughputs,
        places=[place for place in nodes_section.places(data) if shown.plots(place["deployment"])],
        jobs=nodes_section.jobs(data),
        balance=shown.worst(nodes_section.balance(data)),
        replica_startups=nodes_section.replica_startups(data),
        attempts=attempts_section.rows(data.attempts, data.measurements, data.rejected, [*found, *later]),
        rejected=attempts_section.rejected_rows(shown.first(data.rejected), [*found, *later]),
        made_good=later,
        excerpts={gap.anchor: data.excerpts.get(excerpts.key(gap.failure)) for gap in (*found, *later)},
        groups=shown.groups(groups),
        alone=comparison.alone(data, groups),
        device=comparison.device(data),
        unit=lambda count: comparison.unit(data, count),
        router_pairs=[
            pair for pair in router_share.pairs(points, data) if shown.shows(pair.deployment, pair.router.workload, pair.router.load)
        ],
        distributions=bins,
        loads_left_out=histogram.left_out(bins, points),
        heaviest=histogram.heaviest(bins),
        timelines=_with_load(block["timelines"]),
        timelines_left_out=len(made.moments) < len(data.timelines),
        busiest=timelines.busiest(made.moments),
        roofline=[share for share in shares if shown.shows(share.deployment, share.workload, share.load)],
        roofline_unknown=unknown,
        series=charts.series(shown.series),
        looks={look["name"]: look for look in charts.series(shown.series)},
        block_id=blocks.ID,
        block=_json(made.block),
        drawings=_json(made.specs),
        hardware_line=views.hardware_line(data.hardware),
        hardware_facts=views.hardware_facts(data.hardware),
        clients=[row for row in views.clients(data) if shown.shows(row["deployment"], row["workload"], row["load"])],
        startup=views.startup_table(data),
        memory=views.memory(data),
        config=yaml.safe_dump(formatting.plain(data.config), sort_keys=False, allow_unicode=True, width=100),
        style=Markup(style),  # noqa: S704 - our own file
        bundle=Markup(bundle),  # noqa: S704 - our own file
        script=Markup(script),  # noqa: S704 - our own file
        policy=_policy([bundle, script], [style]),
    )
    return str(page.lstrip())


def _with_load(found: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return rows of the block with their load in words."""
    return [{**row, "load": formatting.load(row["concurrency"], row["request_rate_per_s"])} for row in found]


@cache
def _template() -> Any:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {"words": formatting, "columns": columns, "views": views}
    environment.filters |= {
        "number": formatting.number,
        "quantity": formatting.quantity,
        "plural": formatting.plural,
        "seconds": formatting.seconds,
        "clock": formatting.clock,
        "size": formatting.size,
        "yaml": lambda value: yaml.safe_dump(formatting.plain(value), sort_keys=False, allow_unicode=True, width=100),
    }
    return environment.get_template("report.html.j2")


def _json(value: Any) -> Markup:
    """JSON for a ``<script type="application/json">`` block: nothing in it can end the block or open a comment."""
    return Markup(json.dumps(value, allow_nan=False, separators=(",", ":")).translate(_JSON_ESCAPES))  # noqa: S704 - escaped in this line


def _policy(scripts: list[str], styles: list[str]) -> str:
    """Return content security policy: no request to anywhere, and only these inline scripts and styles.

    https://www.w3.org/TR/CSP3/#match-element-to-source-list
    """
    return f"default-src 'none'; script-src {_hashes(scripts)}; style-src {_hashes(styles)}; base-uri 'none'; form-action 'none'"


def _hashes(texts: list[str]) -> str:
    digests = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts)
    return " ".join(f"'sha256-{digest}'" for digest in digests)
