"""The report page: one HTML file that needs nothing else, asks for nothing and runs only its own scripts."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from servemark.machine import visible_gpus
from servemark.report import block as blocks
from servemark.report import (
    charts,
    columns,
    comparison,
    distributions,
    formatting,
    nodes_section,
    roofline,
    starting,
    views,
)
from servemark.report.charts import TEMPLATES
from servemark.report.gaps import attempt_rows, gaps, made_good, rejected_rows
from servemark.report.gather import RunRecords

_JSON_ESCAPES = {ord("<"): "\\u003c", ord(">"): "\\u003e", ord("&"): "\\u0026"}


def render(data: RunRecords, *, bundle: str | None = None, whole: bool | None = None) -> str:
    """Return the page as HTML text; write it as UTF-8.

    The content security policy names the sha256 of each inline script and style, so nothing that data could smuggle
    into the page would run. Data reaches the scripts as JSON in blocks that the browser does not execute. The cells and plots of
    measurements are made of one of them (``block.content``), which ``servemark verify`` compares.

    Args:
        bundle: the script that draws the plots; by default Vega's, which takes a second to make.
        whole: show every measurement; by default, where there are at most ``thinning.WHOLE``.
    """
    bundle = charts.bundle() if bundle is None else bundle
    style, script = ((TEMPLATES / name).read_text(encoding="utf-8") for name in ("report.css", "report.js"))
    made = blocks.content(data, whole)
    block, shown, points = blocks.expanded(made.block), made.shown, made.points
    headline = views.headlines(points, data)
    found = gaps(data)
    later = made_good(data, found)
    shares, unknown = roofline.shares(points, data)
    # Markup marks what needs no escaping: our own files, the pinned bundle, and JSON that _json has escaped.
    page = _template().render(
        data=data,
        made=made,
        shown=shown,
        verdicts=block["verdicts"],
        headline=[{**group, "cards": shown.cards(group["cards"])} for group in headline],
        points=_with_load(block["points"]),
        measured=_with_load(block["measurements"]),
        objections=block["reasons"],
        gaps=shown.first(found),
        gap_count=len(found),
        places=[place for place in nodes_section.places(data) if shown.plots(place["deployment"])],
        balance=shown.worst(nodes_section.balance(data)),
        attempts=attempt_rows(data, [*found, *later]),
        rejected=rejected_rows(shown.first(data.rejected), [*found, *later]),
        made_good=later,
        groups=comparison.groups(points, data),
        router_pairs=[pair for pair in comparison.pairs(points, data) if shown.shows(pair.router)],
        loads_left_out=distributions.left_out(made.bins, points),
        heaviest=distributions.heaviest(made.bins),
        timelines=_with_load(block["timelines"]),
        roofline=[share for share in shares if shown.shows(share.point)],
        roofline_unknown=unknown,
        looks={look["name"]: look for look in charts.series(shown.series)},
        clients=[row for row in views.clients(data) if shown.shows(row)],
        block_id=blocks.ID,
        block=_json(made.block),
        drawings=_json(made.specs),
        style=Markup(style),  # noqa: S704 - our own file
        bundle=Markup(bundle),  # noqa: S704 - our own file
        script=Markup(script),  # noqa: S704 - our own file
        # No request to anywhere, and only these inline scripts and styles: https://www.w3.org/TR/CSP3/#match-element-to-source-list
        policy=f"default-src 'none'; script-src {_hashes(bundle, script)}; style-src {_hashes(style)}; base-uri 'none'; form-action 'none'",
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
    modules = {"columns": columns, "comparison": comparison, "starting": starting, "views": views}
    environment.globals |= {**modules, "words": formatting, "hiding": visible_gpus.hiding}
    names = ("number", "quantity", "plural", "seconds", "clock", "size")
    environment.filters |= {name: getattr(formatting, name) for name in names}
    environment.filters["yaml"] = lambda value: yaml.safe_dump(formatting.plain(value), sort_keys=False, allow_unicode=True, width=100)
    return environment.get_template("report.html.j2")


def _json(value: Any) -> Markup:
    """Return JSON for a ``<script type="application/json">`` block: nothing in it can end the block or open a comment."""
    return Markup(json.dumps(value, allow_nan=False, separators=(",", ":")).translate(_JSON_ESCAPES))  # noqa: S704 - escaped in this line


def _hashes(*texts: str) -> str:
    digests = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts)
    return " ".join(f"'sha256-{digest}'" for digest in digests)
