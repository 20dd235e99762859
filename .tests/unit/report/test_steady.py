"""Steady state and whole run next to each other: table, terminal, headline, curves and report."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builders import report_data
from builders.report_data import measurement, steady
from builders.report_document import Document
from servemark.report import comparison, packed, page, table, views
from servemark.report.page import render

MISSING = {"steady": None, "steady_missing": "Only 3 requests are left."}


def medians(*items):
    return views.medians(table.aggregate(table.tidy(items)))


def run(*items, **changes):
    names = sorted({item.deployment for item in items})
    plans = {name: report_data.plan(name, tuple(item for item in items if item.deployment == name)) for name in names}
    empty = {"attempts": [], "distributions": (), "timelines": {}, "startups": {}, "stopped": {}, "rejected": ()}
    return replace(report_data.demo(), measurements=list(items), plans=plans, config={}, **empty | changes)


def test_existing_columns_stay_the_whole_run():
    (row,) = table.rows(table.tidy([measurement(output=800.0, ttft=20.0, steady=steady(900.0, 10.0, 8.0, count=400))]))
    assert (row["output_tokens_per_s"], row["ttft_p50_ms"]) == (800.0, 20.0)
    assert (row["steady_output_tokens_per_s"], row["steady_ttft_p50_ms"], row["steady_requests"]) == (900.0, 10.0, 400)
    assert row["steady_ttft_p95_low_ms"] < row["steady_ttft_p95_ms"] < row["steady_ttft_p95_high_ms"]


def test_invalid_measurement_has_no_steady_results():
    (row,) = table.rows(table.tidy([report_data.invalid()]))
    assert {row[name] for name in row if name.startswith(("steady_", "in_flight", "peak"))} == {None}


def test_median_of_steady_state_needs_every_repetition():
    some = [measurement(repetition=1), measurement(repetition=2, **MISSING)]
    (point,) = medians(*some)
    assert point["steady_output_tokens_per_s_median"] is None
    assert point["steady_missing"] == MISSING["steady_missing"]
    assert point["output_tokens_per_s_median"] is not None
    (point,) = medians(some[0], report_data.invalid(repetition=2))
    assert point["steady_output_tokens_per_s_median"] == 820.0, "an INVALID repetition does not count"


def test_best_load_is_chosen_by_the_steady_state():
    slow_start = measurement(concurrency=8, output=500.0, steady=steady(900.0, 20.0, 8.0))
    data = run(slow_start, measurement(concurrency=4, output=800.0))
    (group,) = views.headlines(medians(*data.measurements), data)
    assert (group["state"], group["cards"][0]["best"]["concurrency"]) == ("steady_", 8)


def test_steady_state_is_not_compared_with_a_whole_run():
    items = [measurement("a", output=500.0, steady=steady(900.0, 20.0, 8.0)), measurement("b", output=800.0, **MISSING)]
    data = run(*items)
    (group,) = views.headlines(medians(*items), data)
    assert (group["state"], [card["share"] for card in group["cards"]]) == ("", [pytest.approx(5 / 8), 1.0])
    (group,) = comparison.groups(medians(*items), data)
    assert [(row.state, row.ratio) for row in group.rows] == [("", pytest.approx(5 / 8)), ("", 1.0)]


def test_equal_resources_are_compared_by_steady_states():
    items = [measurement("a", output=500.0, steady=steady(900.0, 20.0, 8.0)), measurement("b", output=800.0)]
    (group,) = comparison.groups(medians(*items), run(*items))
    assert [(row.state, row.ratio) for row in group.rows] == [("steady_", 1.0), ("steady_", pytest.approx(8 / 9))]


def test_terminal_shows_steady_state_and_words_for_what_is_missing():
    text = table.text_table(table.tidy([measurement(steady=steady(901.0, 10.0, 8.0)), measurement(concurrency=4, output=777.0, **MISSING)]))
    found = {line.split()[2]: line.split() for line in text.splitlines() if line.startswith("plain")}
    assert found["c=8"][4] == "901" and found["c=8"].count("few") == 2
    assert "777" in found["c=4"] and "whole" in found["c=4"]
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize(("changes", "word"), [({"steady": None}, "recorded"), (MISSING, "has")])
def test_terminal_shows_whole_run_with_a_note_if_no_load_is_steady(changes, word):
    text = table.text_table(table.tidy([measurement(output=777.0, ttft=21.4, **changes)]))
    (row,) = (line.split() for line in text.splitlines() if line.startswith("plain"))
    assert "777" in row and "21.4" in row and "few" not in row
    assert "whole run" in text.splitlines()[-1] and word in text.splitlines()[-1]


def test_report_states_words_instead_of_missing_results():
    html = Document(render(run(measurement(), measurement(concurrency=4, **MISSING)), bundle=""))
    four, _, eight, whole = html.cells("figures")
    assert (four[2], four[4], four[5]) == ("concurrency 4", "steady state", MISSING["steady_missing"])
    assert eight[2] == "concurrency 8" and "too few" in eight
    assert whole[0] == "whole run" and "too few" not in whole


@pytest.mark.parametrize(("tokens", "shown"), [(1.0, False), (1.05, False), (19.7, True)])
def test_report_says_if_chunks_hold_several_tokens(tokens, shown):
    words = Document(render(run(measurement(tokens_per_chunk=tokens)), bundle="")).words
    assert ("19.7" in words) == shown
    (row,) = table.rows(table.tidy([measurement(tokens_per_chunk=tokens)]))
    assert row["itl_per_token_ms"] == pytest.approx(row["itl_mean_ms"] / tokens)
    assert row["steady_itl_per_token_ms"] == pytest.approx(row["steady_itl_mean_ms"] / tokens)


def test_curves_hold_both_parts_under_their_own_names():
    block = page.content(run(measurement(output=800.0, steady=steady(900.0, 10.0, 8.0)))).block
    panel = packed.unpack(block["curves"]["panel-0"])
    assert [(row["output_tokens_per_s"], row["steady_output_tokens_per_s"]) for row in panel["throughput"]] == [(800.0, 900.0)]
    assert panel["ttft"][0]["steady_p50"] == 10.0 and panel["ttft"][0]["p50"] == 21.4
    assert panel["ttft"][0]["steady_p99"] is None


def test_curves_count_measurements_without_steady_state():
    found = page.content(run(measurement(), measurement(concurrency=4, **MISSING), report_data.invalid(concurrency=2)))
    assert found.stateless == {"shown": 2, "missing": 1, "few": 1, "waves": 0}


def test_report_marks_percentiles_of_requests_that_start_in_waves():
    even = steady(900.0, 10.0, 8.0, count=400)
    waves = steady(900.0, 10.0, 8.0, count=400, ttft_ms=even.ttft_ms.model_copy(update={"p95_range": None}))
    found = []
    for state, count in ((even, 0), (steady(900.0, 10.0, 8.0), 0), (waves, 1)):
        data = run(measurement(steady=state))
        assert page.content(data).stateless["waves"] == count
        found.append(Document(render(data, bundle="")).words.count("waves"))
    # The glossary names waves in every report; the verdict's row and the curves only where there are some.
    assert found[0] == found[1] == found[2] - 2
