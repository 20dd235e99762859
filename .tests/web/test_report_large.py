"""The report of a very large run in a real browser."""

from __future__ import annotations

import time

import pytest

from builders import report_data_large
from servemark.report import thinning
from servemark.report.page import render

DESKTOP = {"width": 1280, "height": 900}


@pytest.mark.parametrize("deployments", [250, pytest.param(1000, marks=pytest.mark.full)])
def test_report_of_up_to_20000_measurements_opens_with_tables_and_plots(visit, shoot, capsys, deployments):
    html = render(report_data_large.large(deployments, 10, 2))
    assert len(html.encode()) < 10_000_000, "each load point has a row for the steady state and one for the whole run, with intervals"
    begin = time.monotonic()
    visited = visit(html, viewport=DESKTOP)
    seconds = time.monotonic() - begin
    page = visited.page
    assert visited.seen.complaints == []
    assert page.locator("#figures tbody tr").count() == 2 * 2000
    # Two reasons, each SUSPECT or INVALID measurement, and the meaning of a verdict's reason.
    assert page.locator("#verdicts tbody tr").count() == 2 + deployments * 20 // 500 * 2 + 1
    assert page.locator("#curves .legend button").count() == thinning.SERIES
    for chart in ("throughput", "ttft", "tpot", "itl", "e2el", "startup", "timeline-requests"):
        assert page.locator(f"[data-drawing={chart}] svg path").count() > 0, chart
    assert 0 < page.locator("[data-drawing=throughput] svg .mark-symbol.role-mark path").count() <= thinning.DRAWN
    shoot(page, "large.png")
    with capsys.disabled():
        print(f"\n{deployments * 20:,} measurements, {len(html.encode()) / 1e6:.1f} MB: opened and drawn in {seconds:.1f} s")
