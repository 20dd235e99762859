"""The report page in a real browser: self-contained, drawn, interactive, inert, readable on a phone and on paper."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise

import pytest

from builders import report_data, report_data_cluster
from builders.drawings import BUILDS, CURVES, DESKTOP, EACH, PHONE, page_of, points, quiet, settle, texts
from servemark.report import charts, formatting
from servemark.report.page import render


@pytest.mark.parametrize("build", BUILDS, ids=[build.__name__ for build in BUILDS])
def test_report_loads_nothing_breaks_no_policy_and_orders_headings(visit, build):
    visited = visit(page_of(build), viewport=DESKTOP)
    assert visited.page.title() == f"{build().run}: servemark report"
    levels = visited.page.evaluate("() => [...document.querySelectorAll('h1,h2,h3,h4')].map(node => Number(node.tagName[1]))")
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    quiet(visited)


def test_policy_stops_a_foreign_script_and_eval(visit):
    html = page_of(report_data.demo).replace("</main>", "<script>document.title = 'foreign'</script></main>")
    visited = visit(html, viewport=DESKTOP)
    assert visited.page.title() == "demo: servemark report"
    assert any("script-src" in line for line in visited.seen.complaints)
    refused = "EvalError" in visited.page.evaluate(
        """() => new Promise(done => {
            const script = document.querySelector('script:not([type])');
            addEventListener('securitypolicyviolation', event => done('EvalError ' + event.blockedURI));
            try { setTimeout('document.title = "evaluated"', 0); } catch (error) { done(String(error)); }
            setTimeout(() => done('nothing refused'), 500);
        })"""
    )
    assert refused
    assert visited.page.title() == "demo: servemark report"


def test_every_plot_has_one_mark_for_each_measurement(visit):
    page = visit(page_of(report_data.demo), viewport=DESKTOP).page
    assert {chart: points(page, chart).count() for chart in CURVES} == dict.fromkeys(CURVES, 12)
    assert page.locator("[data-drawing=startup] svg .mark-rect.role-mark path").count() == 5 + 6
    for chart in (*CURVES, "startup"):
        box = page.locator(f"[data-drawing={chart}] svg").bounding_box()
        assert box["width"] > 300
        assert box["height"] > 80
        assert page.locator(f"[data-drawing={chart}] svg").get_attribute("aria-label") or page.locator(
            f"[data-drawing={chart}] [aria-label]"
        ).first.get_attribute("aria-label")


def test_suspect_points_are_hollow_and_carry_a_question_mark(visit):
    page = visit(page_of(report_data.demo), viewport=DESKTOP).page
    opacities = [item.get_attribute("fill-opacity") for item in points(page, "ttft").all()]
    assert opacities.count("0") == 1
    marks = page.locator("[data-drawing=ttft] svg .mark-text.role-mark text")
    assert [text for text in marks.all_text_contents() if text] == ["?"]


def test_legend_hides_a_deployment_in_every_plot_and_shows_it_again(visit):
    visited = visit(page_of(report_data.demo), viewport=DESKTOP)
    page = visited.page
    button = page.get_by_role("button", name="ray-tp2").first
    button.click()
    settle(page)
    assert button.get_attribute("aria-pressed") == "false"
    assert {chart: points(page, chart).count() for chart in CURVES} == dict.fromkeys(CURVES, 6)
    button.click()
    settle(page)
    assert {chart: points(page, chart).count() for chart in CURVES} == dict.fromkeys(CURVES, 12)
    quiet(visited)


def test_curves_show_the_steady_state_until_the_whole_run_is_chosen(visit):
    visited = visit(page_of(report_data.demo), viewport=DESKTOP)
    page = visited.page
    assert page.get_by_role("radio", name="Steady state").is_checked()
    page.get_by_role("radio", name="p95").check(force=True)
    settle(page)
    # The steady state of each measurement has too few requests for p95 of a request's latency, but not of its gaps.
    assert page.locator("[data-few=ttft]").is_visible() and not page.locator("[data-drawing=ttft]").is_visible()
    assert points(page, "itl").count() == 12 and not page.locator("[data-few=itl]").is_visible()
    page.get_by_role("radio", name="Whole run").check(force=True)
    settle(page)
    assert points(page, "ttft").count() == 12 and not page.locator("[data-few=ttft]").is_visible()
    quiet(visited)


def test_statistic_and_throughput_choices_redraw_the_axes(visit):
    visited = visit(page_of(report_data.demo), viewport=DESKTOP)
    page = visited.page
    page.get_by_role("radio", name="Whole run").check(force=True)
    settle(page)
    before = {chart: texts(page, chart) for chart in CURVES}
    page.get_by_role("radio", name="p99").check(force=True)
    page.get_by_role("radio", name="Requests/s").check(force=True)
    settle(page)
    after = {chart: texts(page, chart) for chart in CURVES}
    assert after["ttft"] != before["ttft"]
    assert after["throughput"] != before["throughput"]
    assert page.locator("[data-title=throughput]").inner_text() == charts.THROUGHPUTS["requests_per_s"]
    quiet(visited)


def test_tooltip_names_the_measurement(visit):
    visited = visit(page_of(report_data.demo), viewport=DESKTOP)
    page = visited.page
    page.locator("[data-drawing=throughput]").scroll_into_view_if_needed()
    points(page, "throughput").first.hover(force=True)
    tip = page.locator("#tip")
    tip.wait_for(state="visible")
    assert "plain" in tip.inner_text()
    assert "VALID" in tip.inner_text()
    page.mouse.move(5, 5)
    tip.wait_for(state="hidden")
    quiet(visited)


def test_control_wheel_zooms_and_double_click_resets(visit):
    visited = visit(page_of(report_data.demo), viewport=DESKTOP)
    page = visited.page
    drawing = page.locator("[data-drawing=throughput]")
    drawing.scroll_into_view_if_needed()
    before = texts(page, "throughput")
    box = drawing.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.keyboard.down("Control")
    page.mouse.wheel(0, -400)
    page.keyboard.up("Control")
    page.wait_for_timeout(200)
    assert texts(page, "throughput") != before
    page.mouse.dblclick(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.wait_for_timeout(200)
    assert texts(page, "throughput") == before
    page.mouse.wheel(0, 400)
    page.wait_for_timeout(200)
    assert texts(page, "throughput") == before, "a plain wheel scrolls the page and leaves the plot alone"
    quiet(visited)


def test_plot_is_saved_as_svg(visit):
    page = visit(page_of(report_data.demo), viewport=DESKTOP).page
    with page.expect_download() as download:
        page.locator("[data-save=ttft]").click()
    assert download.value.suggested_filename == "ttft.svg"
    assert download.value.path().read_text().startswith("<svg")


def test_chosen_workload_is_drawn(visit):
    visited = visit(page_of(report_data.troubled), viewport=DESKTOP)
    page = visited.page
    assert [text.split(",")[0] for text in page.locator("#panel option").all_inner_texts()] == ["chat", "burst"]
    chat = page.locator("[data-drawing=throughput] svg").text_content()
    assert points(page, "throughput").count() == 14
    page.locator("#panel").select_option(index=1)
    page.wait_for_function("() => document.querySelectorAll('[data-drawing=e2el] .mark-symbol.role-mark path').length == 6")
    assert points(page, "throughput").count() == 6
    assert page.locator("[data-drawing=throughput] svg").text_content() != chat
    quiet(visited)


def test_invalid_results_appear_nowhere(visit):
    page = visit(page_of(report_data.troubled), viewport=DESKTOP).page
    # Without decimals: a coordinate of a drawing may contain these digits behind its point.
    whole = re.sub(r"\.\d+", "", page.evaluate("() => document.documentElement.outerHTML"))
    for shown in (formatting.number(report_data.POISON), "98,765", "98765"):
        assert shown not in whole
    assert page.locator("#verdicts tr:has(.badge.invalid)").count() == 3


def test_hostile_text_is_shown_and_inert(visit):
    visited = visit(page_of(report_data.troubled), viewport=DESKTOP)
    page = visited.page
    assert page.locator("img").count() == 0
    assert page.title().startswith("stress </script>")
    assert report_data.HOSTILE in page.locator("h1").text_content()
    assert "s3cret" not in page.content()
    page.locator("[data-drawing=throughput]").scroll_into_view_if_needed()
    page.get_by_role("button", name="plain").first.click()
    page.get_by_role("button", name="ray-tp2").first.click()
    settle(page)
    points(page, "throughput").last.hover(force=True)
    page.locator("#tip").wait_for(state="visible")
    assert report_data.HOSTILE in page.locator("#tip").text_content()
    assert page.locator("img").count() == 0
    quiet(visited)


@pytest.mark.parametrize("build", EACH)
def test_phone_needs_no_horizontal_scrolling(visit, shoot, build):
    visited = visit(page_of(build), viewport=PHONE, device_scale_factor=2, is_mobile=True, has_touch=True)
    page = visited.page
    assert page.evaluate("() => document.documentElement.scrollWidth") <= PHONE["width"]
    assert page.evaluate("() => document.body.scrollWidth") <= PHONE["width"]
    wide = page.locator("#figures .scroll")
    assert wide.evaluate("box => box.scrollWidth > box.clientWidth"), "the wide table scrolls inside its own box"
    shoot(page, f"{build.__name__}-phone.png", full_page=True)
    quiet(visited)


@pytest.mark.parametrize("build", EACH)
def test_dark_and_light_differ_in_page_and_plots(visit, shoot, build):
    colours = {}
    for scheme in ("light", "dark"):
        visited = visit(page_of(build), viewport=DESKTOP, color_scheme=scheme)
        page = visited.page
        colours[scheme] = (
            page.evaluate("() => getComputedStyle(document.body).backgroundColor"),
            points(page, "throughput").first.get_attribute("fill"),
            page.locator("[data-drawing=throughput] svg text").first.evaluate("text => getComputedStyle(text).fill"),
        )
        shoot(page, f"{build.__name__}-{scheme}.png", full_page=True)
        quiet(visited)
    assert all(light != dark for light, dark in zip(colours["light"], colours["dark"], strict=True))


def test_plots_follow_a_change_of_colour_scheme(visit):
    page = visit(page_of(report_data.demo), viewport=DESKTOP, color_scheme="light").page
    before = points(page, "throughput").first.get_attribute("fill")
    page.emulate_media(color_scheme="dark")
    page.wait_for_function(
        "before => document.querySelector('[data-drawing=throughput] .mark-symbol.role-mark path')?.getAttribute('fill') !== before",
        arg=before,
    )


def test_text_has_contrast_in_both_schemes(visit):
    ratio = """() => {
      const light = text => { const [r, g, b] = text.match(/[\\d.]+/g).map(Number).map(value => {
        const part = value / 255; return part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4; });
        return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
      const ground = node => { for (; node; node = node.parentElement) {
        const colour = getComputedStyle(node).backgroundColor;
        if (colour !== 'rgba(0, 0, 0, 0)') return colour; } };
      const poor = [];
      const all = 'p, dt, dd, th, td, h1, h2, h3, h4, a, .badge, .unit, .muted, .chip, button, .doubt';
      for (const node of document.querySelectorAll(all)) {
        if (!node.innerText?.trim() || node.closest('.skip, .hidden, [hidden]')) continue;
        const [a, b] = [light(getComputedStyle(node).color), light(ground(node))].sort((x, y) => y - x);
        const contrast = (a + 0.05) / (b + 0.05);
        if (contrast < 4.5) poor.push(`${node.className || node.tagName}: ${contrast.toFixed(2)}`);
      }
      return [...new Set(poor)];
    }"""
    for scheme in ("light", "dark"):
        page = visit(page_of(report_data.troubled), viewport=DESKTOP, color_scheme=scheme).page
        assert page.evaluate(ratio) == []


def test_tables_hold_the_numbers_without_javascript(visit):
    page = visit(page_of(report_data.demo), viewport=DESKTOP, java_script_enabled=False).page
    assert page.locator("#figures tbody tr").count() == 12
    assert page.locator("noscript").count() == 1
    assert "814" in page.locator("#headline").inner_text() or "810" in page.locator("#headline").inner_text()


@pytest.mark.parametrize("build", EACH)
def test_printed_tables_fit_the_paper(visit, shoot, build):
    """A4 without 10 mm margins is 718 CSS pixels wide; in landscape, for the table of all results, 1047."""
    page = visit(page_of(build), viewport=DESKTOP).page
    assert page.pdf(print_background=True, prefer_css_page_size=True).startswith(b"%PDF")
    page.emulate_media(media="print")
    for width, selector in ((718, ".scroll table:not(.wide), svg, pre"), (1047, "table.wide")):
        page.set_viewport_size({"width": width, "height": 1000})
        widest = page.evaluate(
            """selector => Math.max(
                ...[...document.querySelectorAll(selector)].map(node => node.getBoundingClientRect().right))""",
            selector,
        )
        assert widest <= width
    shoot(page, f"{build.__name__}-print.png", full_page=True)
    assert not page.locator("nav").is_visible()


def test_report_of_two_nodes_has_places_and_results_per_device(visit):
    visited = visit(page_of(report_data_cluster.two_nodes), viewport=DESKTOP)
    page = visited.page
    assert page.get_by_role("link", name="Cluster").get_attribute("href") == "#cluster"
    assert page.locator("#cluster h3").all_inner_texts()[:3] == ["plain", "tp2-x4", "tp4-pp2-ray"]
    assert [table.locator("tbody tr").count() for table in page.locator("#cluster table").all()][:3] == [1, 3, 3]
    page.locator(f"input[value={charts.PER_DEVICE}]").check(force=True)
    settle(page)
    label = page.locator(f"input[value={charts.PER_DEVICE}]").get_attribute("data-label")
    assert page.locator("[data-title=throughput]").inner_text() == label
    assert max(float(text.replace("\u202f", "")) for text in texts(page, "throughput")) <= 10_000
    assert points(page, "throughput").count() == 18
    quiet(visited)


def test_report_of_a_laptop_has_no_cluster_section(visit):
    page = visit(page_of(report_data.demo), viewport=DESKTOP).page
    assert page.locator("#cluster").count() == 0
    assert page.get_by_role("radio", name="per device").count() == 0


def test_report_without_measurements_states_it(visit):
    empty = replace(report_data.demo(), measurements=[], startups={}, stopped={})
    visited = visit(render(empty), viewport=DESKTOP)
    assert visited.page.locator("#headline .big").all_inner_texts() == ["no result", "no result"]
    assert visited.page.locator("#figures .empty").count() == 1 and visited.page.locator("#figures tr").count() == 0
    assert visited.page.locator("#curves").count() == 0
    assert visited.page.locator(".gap").count() == 2
    quiet(visited)
