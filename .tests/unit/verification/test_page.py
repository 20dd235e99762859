"""Every figure that an archive's report page states is compared with what its per-request results give."""

from __future__ import annotations

import re

import pytest

from builders.archived_run import FINE, wrong
from servemark import __version__
from servemark.report import thinning


@pytest.mark.parametrize(
    ("pattern", "new", "said"),
    [
        (r'(class="big">)[\d.]+', r"\g<1>99999", "plain, chat 10 tokens in, 4 out headline: text: stated 99999"),
        (r'(Highest throughput: )[\d.]+', r"\g<1>99999", "summary: text: stated"),
        (r'("output_tokens_per_s": )[\d.]+', r"\g<1>1.5", "load 1, repetition 1: throughput output_tokens_per_s: stated 1.5"),
        (r'("seconds": )[\d.]+', r"\g<1>1.5", "startup seconds: stated 1.5"),
        (r'(<td class="num group">)[\d.]+', r"\g<1>99999", "concurrency 1: output_tokens_per_s (median and range): stated 99999"),
        (r'(id="memory".*?<td class="num">)[\d.,]+', r"\g<1>99999", "Planned: stated 99999"),
        (r'(id="verdicts".*?)8/8', r"\g<1>9/8", "Requests: stated 9/8, recomputed 8/8"),
        (r'(id="verdicts".*?)<tr>.*?</tr>', r"\g<1>", "verdicts: number of lines: stated 12, recomputed 13"),
        (r'<section id="figures".*?</section>', "", "figures: number of lines: stated 0"),
        (r'"drawings">.*?</script>', '"drawings">]</script>', "report.html holds no data of its plots"),
        (r'(id="comparison".*?<td class="num">)[\d.]+(<span)', r"\g<1>99999\2", "concurrency 1: Output tokens/s per rank: stated 99999"),
        (r'(id="attempts".*?)4 VALID', r"\g<1>5 VALID", "ray-tp2 001: Measured: stated 5 VALID, recomputed 4 VALID"),
        (r'(id="timeline".*?<td class="num">)17(</td>)', r"\g<1>99\2", "Seconds seen: stated 99, recomputed 17"),
        (r'("counts": {"plain": \[)\d+', r"\g<1>77", "plain chat, concurrency 1, bin from "),
        (r'("edges": \[)[\d.]+', r"\g<1>0.015", "chat, concurrency 1: ttft bins: stated "),
        (r'("columns": {"seconds": \[3), 4', r"\g<1>, 4.5", "second 4: timeline seconds: stated 4.5, recomputed 4"),
        (r'"panel-0": ', '"panel-9": ', "panel-9 throughput: plot: stated there, recomputed not there"),
        (r"(?s).*", "", "report.html holds no data of its plots"),
    ],
)  # fmt: skip
def test_a_changed_figure_of_the_page_is_named(run, pattern, new, said):
    run.edit("report.html", lambda text: re.sub(f"(?s){pattern.removeprefix('(?s)')}", new, text, count=1))
    found = wrong(run.seal())
    assert any(said in line for line in found), found
    assert all("report.html" in line for line in found)


def test_what_the_router_adds_is_checked_too(run):
    def split(plan):
        plan["topology"]["replicas"] = 2
        for point in plan["points"]:
            if point["concurrency"] == 1:
                point.update(workload="direct", ask="replica")

    run.edit_json("deployments/plain/plan.json", split)
    for repetition in (1, 2):
        run.judge("plain", f"chat-c1-r{repetition}", FINE)
    assert wrong(run.seal()) == []
    run.edit(
        "report.html", lambda text: re.sub(r'(?s)(id="router".*?<td class="num">)[\d.]+', r"\g<1>99999", text, count=1)
    )
    (said,) = wrong(run.seal())
    assert "report.html, router" in said
    assert "chat, concurrency 2, direct, concurrency 1, TTFT p50 ms: Through the router: stated 99999" in said


def test_the_page_of_another_version_with_other_words_and_the_same_figures_is_well(run):
    def reworded(text: str) -> str:
        text = text.replace(f'content="servemark {__version__}"', 'content="servemark 0.0.9"')
        return text.replace("<h2", "<hr><h2").replace("Highest throughput", "The best").replace(">Accepted<", ">Taken<")

    run.edit("report.html", reworded)
    assert wrong(run.seal()) == []
    run.edit("report.html", lambda text: re.sub(r'(class="big">)[\d.]+', r"\g<1>7", text, count=1))
    assert "written by servemark 0.0.9" in wrong(run.seal())[0]


def test_a_page_that_shows_a_part_is_compared_with_that_part(run, monkeypatch):
    with monkeypatch.context() as patch:
        for limit in ("WHOLE", "POINTS", "SERIES", "DRAWN"):
            patch.setattr(thinning, limit, 1)
        run.report()
        assert 'name="servemark-shows" content="part"' in (run.folder / "report.html").read_text()
        assert wrong(run.seal()) == []
        run.edit("report.html", lambda text: re.sub(r'(class="big">)[\d.]+', r"\g<1>99999", text, count=1))
        assert any("stated 99999" in line for line in wrong(run.seal()))


def test_a_whole_page_of_a_run_that_is_now_thinned_is_well(run, monkeypatch):
    """An older servemark shows every measurement of a run of any size."""
    monkeypatch.setattr(thinning, "WHOLE", 1)
    assert wrong(run.seal()) == []
    run.edit("report.html", lambda text: re.sub(r'(class="big">)[\d.]+', r"\g<1>99999", text, count=1))
    assert any("stated 99999" in line for line in wrong(run.seal()))
