"""Other parts of the report in a real browser: bins, timelines, links into logs; keyboard, screen reader, print."""

from __future__ import annotations

import pytest

from builders import report_data, report_data_cluster
from builders.drawings import DESKTOP, EACH, PHONE, page_of, points, quiet, settle

BINS = ("bins-ttft", "bins-tpot", "bins-itl", "bins-e2el")
LINES = ("timeline-requests", "timeline-kv")


def bars(page, chart: str):
    return page.locator(f"[data-drawing={chart}] svg .mark-rect.role-mark path")


def lines(page, chart: str):
    return page.locator(f"[data-drawing={chart}] svg .mark-line.role-mark path")


def test_bins_and_timeline_are_drawn_and_named(visit):
    visited = visit(page_of(report_data.demo), viewport=DESKTOP)
    page = visited.page
    for chart in BINS:
        assert bars(page, chart).count() > 10 and lines(page, chart).count() == 2
        assert max(bar.bounding_box()["height"] for bar in bars(page, chart).all()) > 50
    assert {chart: lines(page, chart).count() for chart in LINES} == {"timeline-requests": 2, "timeline-kv": 1}
    for chart in (*BINS, *LINES):
        assert page.locator(f"[data-drawing={chart}] [aria-label]").first.get_attribute("aria-label")
    quiet(visited)


def test_chosen_load_is_drawn_and_tabled(visit):
    visited = visit(page_of(report_data.troubled), viewport=DESKTOP)
    page = visited.page
    assert page.locator("#load").input_value() == "load-2", "the heaviest load of the first workload"
    before = page.locator("[data-drawing=bins-ttft] svg").inner_html()
    page.locator("#load").select_option(label="chat, concurrency\u00a01")
    page.wait_for_function("before => document.querySelector('[data-drawing=bins-ttft] svg').innerHTML !== before", arg=before)
    page.locator("summary", has_text="bins of this load").click()
    table = page.get_by_role("region", name="Bins of Time to first token").locator("table")
    heads = table.locator("thead th").all_text_contents()
    assert heads == ["Milliseconds", report_data.HOSTILE, "plain", "ray-tp2"]
    counts = [row.locator("td").all_inner_texts() for row in table.locator("tbody tr").all()]
    sums = [sum(int(row[column]) for row in counts) for column in range(3)]
    (item,) = [one for one in report_data.troubled().distributions if (one.workload, one.concurrency) == ("chat", 1)]
    assert sums == [sum(item.metrics["ttft"].counts[name]) for name in heads[1:]]
    assert page.locator("img").count() == 0
    quiet(visited)


def test_bin_tooltip_has_range_and_count(visit):
    page = visit(page_of(report_data.demo), viewport=DESKTOP).page
    page.locator("[data-drawing=bins-e2el]").scroll_into_view_if_needed()
    heights = [bar.bounding_box()["height"] for bar in bars(page, "bins-e2el").all()]
    bars(page, "bins-e2el").nth(heights.index(max(heights))).hover(force=True)
    tip = page.locator("#tip")
    tip.wait_for(state="visible")
    said = tip.inner_text().split("\n")
    assert {"Deployment", "Milliseconds", "Requests", "Share (%)"} <= set(said) and " to " in said[said.index("Milliseconds") + 1]


def test_legend_hides_a_deployment_in_curves_and_bins(visit):
    page = visit(page_of(report_data.demo), viewport=DESKTOP).page
    buttons = page.get_by_role("button", name="ray-tp2")
    assert buttons.count() == 2
    buttons.nth(1).click()
    settle(page)
    assert [lines(page, chart).count() for chart in BINS] == [1] * 4
    assert points(page, "throughput").count() == 6
    assert [button.get_attribute("aria-pressed") for button in buttons.all()] == ["false", "false"]
    buttons.nth(0).click()
    settle(page)
    assert [lines(page, chart).count() for chart in BINS] == [2] * 4


def test_timeline_of_chosen_point_is_drawn(visit):
    visited = visit(page_of(report_data_cluster.two_nodes), viewport=DESKTOP)
    page = visited.page
    assert page.locator("#point option:checked").inner_text().startswith("tp2-x4: chat, concurrency\u00a0512")

    def top():
        return max(float(text.replace("\u202f", "")) for text in page.locator(
            "[data-drawing=timeline-requests] svg .role-axis-label text").all_text_contents() if text)  # fmt: skip

    assert top() >= 500 - 100
    page.locator("#point").select_option(label="plain: chat, concurrency\u00a064, repetition\u00a01")
    page.wait_for_function(
        "() => [...document.querySelectorAll('[data-drawing=timeline-requests] svg .role-axis-label text')]"
        ".every(text => Number(text.textContent.replace(/\\s/g, '')) <= 100)"
    )
    assert top() <= 100
    quiet(visited)


def test_reasons_of_verdicts_are_visible_without_scrolling_sideways(visit):
    page = visit(page_of(report_data.troubled), viewport=DESKTOP).page
    table = page.locator("#verdicts .scroll:has(.badge)").first
    head = table.get_by_role("columnheader", name="Reasons").bounding_box()
    shown = table.bounding_box()
    assert head["width"] >= 24 * 16 and head["x"] + head["width"] <= shown["x"] + shown["width"]


def test_failed_attempt_links_to_its_failure(visit):
    visited = visit(page_of(report_data.troubled), viewport=DESKTOP)
    page = visited.page
    page.locator("#attempts").get_by_role("link", name="await_ready: server_exited").click()
    failure = page.locator("#gap-2")
    assert page.url.endswith("#gap-2")
    assert failure.locator("pre").inner_text().splitlines() == list(report_data.troubled().startups["tp4"].failure.quote)
    assert page.locator("img").count() == 0
    quiet(visited)


@pytest.mark.parametrize("build", EACH)
def test_axe_finds_no_violation(visit, axe, build):
    page = visit(page_of(build), viewport=DESKTOP).page
    page.evaluate("() => { for (const part of document.querySelectorAll('details')) part.open = true; }")
    for scheme, size in (("light", DESKTOP), ("dark", PHONE)):
        page.emulate_media(color_scheme=scheme)
        page.set_viewport_size(size)
        page.wait_for_timeout(500)
        assert axe(page) == []


def test_tab_key_reaches_every_control_visibly(visit):
    page = visit(page_of(report_data.troubled), viewport=DESKTOP).page
    wanted = page.evaluate(
        """() => [...document.querySelectorAll('a[href], button, select, summary, .scroll, pre, .choice input:checked')]
            .filter(node => node.checkVisibility()).length"""
    )
    page.keyboard.press("Tab")
    assert page.evaluate("() => document.activeElement.className") == "skip"
    assert page.evaluate("() => document.activeElement.getBoundingClientRect().left >= 0")
    reached = page.evaluate("() => (document.activeElement.dataset.reached = '1', 1)")
    for _ in range(wanted + 20):
        page.keyboard.press("Tab")
        state = page.evaluate(
            """() => { const node = document.activeElement;
                if (node === document.body || node.dataset.reached) return 'end';
                node.dataset.reached = '1';
                const shown = node.matches('.choice input') ? node.nextElementSibling : node;
                return getComputedStyle(shown).outlineStyle === 'none' ? node.outerHTML.slice(0, 120) : 'seen'; }"""
        )
        if state == "end":
            break
        assert state == "seen"
        reached += 1
    assert reached == wanted


def test_printed_report_has_plots_but_no_tables_of_bins(visit, tmp_path):
    page = visit(page_of(report_data.troubled), viewport={"width": 718, "height": 1000}).page
    page.pdf(path=tmp_path / "report.pdf", print_background=True, prefer_css_page_size=True)
    page.emulate_media(media="print")
    assert not page.locator("#bins").is_visible()
    for chart in (*BINS, *LINES):
        assert page.locator(f"[data-drawing={chart}] svg").bounding_box()["height"] > 80
    assert page.locator("#load").is_visible(), "the load of the bins"


def test_report_without_javascript_lacks_only_the_plots(visit):
    page = visit(page_of(report_data_cluster.two_nodes), viewport=DESKTOP, java_script_enabled=False).page
    assert page.locator("#comparison tbody tr").count() == 6
    assert page.locator("#timeline tbody tr").count() == 18
    assert page.locator("#attempts tbody tr").count() == 4
    assert page.locator("#memory tbody tr").count() == 12 + 9
