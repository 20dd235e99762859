"""Loads through the router and of one replica: their pairs, differences, and section of the report."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builders import report_data
from builders.loads import at_load
from builders.report_data import measurement, plan
from builders.report_document import Document
from servemark import records
from servemark.report import comparison, views
from servemark.report.page import render
from servemark.report.table import aggregate, tidy

FOUR = records.Topology(devices_per_node=4, replicas=4)
WHOLE_RUN = {"steady": None, "steady_missing": "Too few requests are left."}


def through(concurrency=512, repetition=1, **changes):
    return measurement("x4", concurrency, repetition, **({"workload": "router"} | WHOLE_RUN | changes))


def past(concurrency=128, repetition=1, **changes):
    return measurement("x4", concurrency, repetition, **({"workload": "direct", "ask": "replica"} | WHOLE_RUN | changes))


def run(*measurements, **plans):
    made = {"x4": plan("x4", tuple(item for item in measurements if item.deployment == "x4"), topology=FOUR)}
    config = {"run": "demo", "deployments": {"x4": {}}}
    shown = {"attempts": [], "distributions": (), "timelines": {}, "startups": {}, "stopped": {}}
    return replace(report_data.demo(), measurements=list(measurements), plans=made | plans, config=config, **shown)


def pairs(data):
    return comparison.pairs(views.medians(aggregate(tidy(data.measurements))), data)


def lines(pair):
    return {line.label: line for line in pair.lines}


def test_router_pair_has_differences_to_one_replica():
    data = run(
        through(output=3800.0, ttft=110.0, tpot=8.4, clients=4, client_cpu=0.57),
        past(output=1000.0, ttft=100.0, tpot=8.0, client_cpu=0.41),
    )
    (pair,) = pairs(data)
    assert (pair.router["deployment"], pair.verdict) == ("x4", "VALID")
    sides = [(side["workload"], side["concurrency"], side["repetitions_accepted"]) for side in (pair.router, pair.replica)]
    assert sides == [("router", 512, 1), ("direct", 128, 1)]
    assert pair.busiest == (pytest.approx(57), pytest.approx(41))
    found = lines(pair)
    assert list(found) == ["TTFT p50", "TTFT p99", "TPOT p50", "E2EL p50", "Output tokens/s (one replica \u00d7 4)"]
    differences = [(line.difference, line.percent) for line in found.values()]
    # 31 of 32 tokens come after the first; the builder's p99 is 1.88 times its p50.
    expected = [(10, 10), (18.8, 10), (0.4, 5), (10 + 31 * 0.4, 100 * 22.4 / 348), (-200, -5)]
    assert differences == [pytest.approx(values) for values in expected]
    assert found["Output tokens/s (one replica \u00d7 4)"].replica[:3] == (4000.0, 4000.0, 4000.0)
    assert {line.between.words for line in found.values()} == {"cannot tell (1\u00a0repetition)"}


def test_direct_load_counts_devices_of_one_replica():
    data = run(through(output=3800.0), past(output=1000.0))
    data = replace(data, hardware=data.hardware.model_copy(update={"accelerator": "cuda"}))
    cards = {line["workload"]: line["cards"][0] for line in views.headlines(views.medians(aggregate(tidy(data.measurements))), data)}
    assert (cards["router"]["devices"], cards["router"]["per_device"]) == (4, 950.0)
    assert (cards["direct"]["devices"], cards["direct"]["per_device"]) == (1, 1000.0)
    assert data.plans["x4"].asked_by("direct").world_size == 1 and data.plans["x4"].asked_by("router") == FOUR


def test_repetitions_are_paired_by_their_median():
    routed = [through(512, number, ttft=value) for number, value in enumerate((120.0, 150.0, 110.0), 1)]
    single = [past(128, number, ttft=value) for number, value in enumerate((90.0, 100.0), 1)]
    (pair,) = pairs(run(*routed, *single))
    line = lines(pair)["TTFT p50"]
    assert (line.router[:3], line.replica[:3]) == ((120.0, 110.0, 150.0), (95.0, 90.0, 100.0))
    assert (line.router.repetitions, line.replica.repetitions, line.between.words) == (3, 2, "cannot tell (2\u00a0repetitions)")
    assert (line.difference, *(side["repetitions_accepted"] for side in (pair.router, pair.replica))) == (25.0, 3, 2)


def test_difference_of_the_router_has_its_interval_in_percent():
    routed = [through(512, number, ttft=value) for number, value in enumerate((110.0, 111.0, 109.0), 1)]
    single = [past(128, number, ttft=value) for number, value in enumerate((100.0, 101.0, 99.0), 1)]
    line = lines(pairs(run(*routed, *single))[0])["TTFT p50"]
    assert line.between.words == "different" and 5 < line.between.low < line.percent < line.between.high < 15
    same = lines(pairs(run(*routed, *[past(128, n, ttft=value) for n, value in enumerate((109.5, 112.0, 108.0), 1)]))[0])["TTFT p50"]
    assert same.between.words == "no difference shown" and same.between.low < 0 < same.between.high


def test_each_router_load_is_paired_with_its_share():
    data = run(*(through(load) for load in (64, 256, 512)), *(past(load) for load in (16, 32, 128)))
    assert [(pair.router["concurrency"], pair.replica["concurrency"]) for pair in pairs(data)] == [(64, 16), (512, 128)]


@pytest.mark.parametrize(
    "other",
    [
        past(512),
        past(128, input_tokens=65),
        past(128, output_tokens=33),
        past(128, ask="endpoint"),
        past(None, request_rate=2.0),
        past(128, request_rate=2.0),
        report_data.invalid("x4", concurrency=128, workload="direct", ask="replica"),
    ],
    ids=["load", "input", "output", "both-through", "rate", "rate-and-cap", "invalid"],
)
def test_different_loads_are_no_pair(other):
    assert pairs(run(through(), other)) == []
    assert len(pairs(run(through(), past(128, workload="fits"), other))) == 1


def test_two_deployments_are_no_pair():
    elsewhere = measurement("y4", 128, workload="direct", ask="replica")
    assert pairs(run(through(), elsewhere, y4=plan("y4", (elsewhere,), topology=FOUR))) == []


def test_other_client_options_are_no_pair():
    data = run(through(), past())
    points = tuple(
        at_load(item, client_options={"temperature": 1}) if item.load.ask == "replica" else item for item in data.plans["x4"].points
    )
    assert pairs(replace(data, plans={"x4": data.plans["x4"].model_copy(update={"points": points})})) == []


def test_missing_or_zero_result_has_no_difference():
    (pair,) = pairs(run(through(tpot_ms=None), past(output_throughput=0.0)))
    found = list(lines(pair).values())
    assert (found[2].router, found[2].difference, found[2].percent) == (None, None, None)
    assert (found[4].difference, found[4].percent) == (820.0, None)


def test_router_section_exists_only_with_pair():
    page = Document(render(run(through(), past()), bundle=""))
    assert page.cells("router") and ("a", {"href": "#router"}) in page.tags
    without = Document(render(run(through(), past(64)), bundle=""))
    assert not without.cells("router") and ("a", {"href": "#router"}) not in without.tags


def test_suspect_load_marks_its_results_and_all_differences():
    doubtful = past(128, ttft=20.0).model_copy(update={"verdict": "SUSPECT", "client_cpu": 0.5})
    data = run(through(512, ttft=25.0, client_cpu=0.4), doubtful)
    (pair,) = pairs(data)
    assert pair.verdict == "SUSPECT"
    rows = Document(render(data, bundle="")).cells("router")
    assert len(rows) == 6 and {len(row) for row in rows} == {8}
    place = ("x4", "router, concurrency 512", "direct, concurrency 128")
    assert rows[0] == (*place, "TTFT p50, whole run ms", "25.0", "20.0?", "+5.00?", "+25.0?cannot tell (1 repetition)")
    assert (rows[5][:3], rows[5][4:]) == (place, ("40.0", "50.0?", "\u2013", "\u2013"))


def test_router_table_has_caption_and_scopes():
    html = render(run(through(), past()), bundle="")
    section = Document(html[html.index('<section id="router"') : html.index('<section id="figures"')])
    tags = [tag for tag, _ in section.tags]
    assert tags.count("caption") == tags.count("table") == 1
    scopes = [attributes.get("scope") for tag, attributes in section.tags if tag == "th"]
    assert scopes == ["col"] * 8 + ["row"] * 12
    (region,) = [attributes for _, attributes in section.tags if attributes.get("role") == "region"]
    assert region["tabindex"] == "0" and region["aria-label"]
