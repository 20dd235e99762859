"""Helpers of the tests of the report in a browser."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest

from builders import report_data, report_data_cluster, report_data_repeated
from servemark.report.gather import RunRecords
from servemark.report.page import render

BUILDS = (report_data.demo, report_data.troubled, report_data_cluster.two_nodes, report_data_repeated.repeated)
# Together these two have every section of a report.
_ALL_SECTIONS = (report_data.troubled, report_data_cluster.two_nodes)
EACH = [pytest.param(build, id=build.__name__, marks=() if build in _ALL_SECTIONS else pytest.mark.full) for build in BUILDS]
CURVES = ("throughput", "ttft", "tpot", "itl", "e2el")
DESKTOP = {"width": 1280, "height": 900}
PHONE = {"width": 360, "height": 780}


@cache
def page_of(build: Callable[[], RunRecords]) -> str:
    """Return the report of a run; many tests open the same one."""
    return render(build())


def points(page, chart: str):
    return page.locator(f"[data-drawing={chart}] svg .mark-symbol.role-mark path")


def texts(page, chart: str) -> list[str]:
    return sorted(page.locator(f"[data-drawing={chart}] svg .role-axis-label text").all_text_contents())


def settle(page) -> None:
    """Wait for two frames: Vega draws asynchronously after a signal."""
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


def quiet(visited) -> None:
    assert visited.seen.complaints == []
    assert {url.split("#")[0] for url in visited.seen.requests} <= {visited.url}
