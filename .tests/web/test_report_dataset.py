"""The report of a run with a dataset in a real browser."""

from __future__ import annotations

import pytest

from builders import report_data, report_data_dataset
from builders.drawings import DESKTOP, page_of, quiet

LENGTHS = ("bins-input_tokens", "bins-output_tokens")


def bars(page, chart: str):
    return page.locator(f"[data-drawing={chart}] svg .mark-rect.role-mark path")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_lengths_are_drawn_with_their_unit_and_tabled(visit, shoot, scheme):
    visited = visit(page_of(report_data_dataset.run), viewport=DESKTOP, color_scheme=scheme)
    page = visited.page
    for chart in LENGTHS:
        assert bars(page, chart).count() > 10
        assert max(bar.bounding_box()["height"] for bar in bars(page, chart).all()) > 50
        assert "Tokens" in page.locator(f"[data-drawing={chart}] svg").text_content()
    assert "Milliseconds" in page.locator("[data-drawing=bins-ttft] svg").text_content()
    page.locator("#distribution details summary").click()
    tables = page.locator("#bins table")
    assert tables.count() == 6
    assert [row.strip() for row in tables.nth(4).locator("thead th").all_text_contents()] == ["Tokens", "plain", "ray-tp2"]
    assert page.locator("#figures th", has_text="cached %").count() == 1
    shoot(page.locator("#distribution"), f"lengths-{scheme}.png")
    shoot(page.locator("#figures"), f"cached-{scheme}.png")
    quiet(visited)


def test_random_prompts_have_no_lengths(visit):
    visited = visit(page_of(report_data.demo), viewport=DESKTOP)
    for chart in LENGTHS:
        assert visited.page.locator(f"[data-drawing={chart}]").count() == 0
    quiet(visited)
