"""Latency targets in the report: which loads meet them, what to run, and the front of throughput against speed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builders import report_data
from builders.report_data import measurement
from builders.report_document import Document
from servemark.measurement.slo import Attainment
from servemark.records import PlannedSearch, Search
from servemark.report import page, table, targets, views
from servemark.report.gather import RunRecords
from servemark.report.page import render

WANTED = {"ttft_ms": {"p95": 500.0, "p50": 100.0}}


def run(*items, attained, accelerator="cpu"):
    """Return a run whose measurements have these attainments, by deployment and load point."""
    names = sorted({item.deployment for item in items})
    plans = {name: report_data.plan(name, tuple(item for item in items if item.deployment == name)) for name in names}
    empty = {"attempts": [], "distributions": (), "timelines": {}, "startups": {}, "stopped": {}, "rejected": ()}
    demo = report_data.demo()
    machine = demo.machine.model_copy(update={"accelerator": accelerator})
    data = replace(demo, measurements=list(items), plans=plans, config={}, hardware=machine, **empty)
    data.config = {"slo": WANTED, "workloads": {item.load.workload: {} for item in items}}
    # In place of per-request results on disk.
    data.__dict__["attainments"] = {(item.deployment, item.load.name): found for item, found in zip(items, attained, strict=True) if found}
    return data


def reached(met=True, share=0.99):
    return Attainment("steady state", met, share, 20.0 * share, 640.0 * share, 0.5 if met else 2.0)


def points(data: RunRecords):
    return views.medians(table.aggregate(table.tidy(data.measurements, attainments=data.attainments)))


def workload(data: RunRecords):
    (found,) = targets.workloads(points(data), data)
    return found


def test_best_load_is_the_fastest_that_meets_the_targets():
    items = [measurement("a", 8, output=800.0), measurement("a", 16, output=1500.0), measurement("b", 8, output=700.0)]
    found = workload(run(*items, attained=[reached(), reached(met=False, share=0.5), reached()]))
    (choice,) = found.choices
    assert (choice.best.point["deployment"], choice.best.point["concurrency"], choice.best.output.median) == ("a", 8, 800.0)
    assert (choice.following.point["deployment"], choice.between.low) == ("b", None), "one repetition has no interval"
    assert [(line.point["deployment"], line.point["concurrency"], line.met) for line in found.lines] == [
        ("a", 8, True), ("a", 16, False), ("b", 8, True),
    ]  # fmt: skip


def test_load_to_run_is_the_end_of_the_bracket_that_a_search_found():
    items = [measurement("a", 8, output=800.0), measurement("a", 16, output=1500.0), measurement("a", 32, output=1600.0)]
    data = run(*items, attained=[reached(), reached(), reached(met=False)])
    asked = PlannedSearch(workload="chat", variable="concurrency", low=8, high=32, trials=6)
    found = Search(deployment="a", asked=asked, targets=WANTED, trials=(), meets=8, misses=32, ended="narrow")
    data.searches = {"a": [found]}
    (choice,) = workload(data).choices
    assert choice.best.point["concurrency"] == 8, "16 cannot be told from the boundary"
    assert Document(render(data)).words.count("meets at 8, misses at 32") == 2, "what to run, and the search itself"
    data.searches = {"a": [found.model_copy(update={"meets": None})]}
    assert workload(data).choices[0].best is None and not workload(data).undecided
    data.searches = {"a": [found.model_copy(update={"meets": None, "misses": None, "ended": "trials_used"})]}
    assert workload(data).undecided
    page = Document(render(data)).words
    assert "raise trials" in page and "Measure a lighter load" not in page


def test_suspect_trials_that_decide_nothing_ask_for_their_reasons():
    def shown(verdict, **changes):
        data = run(measurement("a", 8, verdict=verdict), attained=[reached()])
        asked = PlannedSearch(workload="chat", variable="concurrency", low=8, high=32, trials=6)
        nothing = Search(deployment="a", asked=asked, targets=WANTED, trials=(), meets=None, misses=None, ended="trials_used")
        data.searches = {"a": [nothing.model_copy(update=changes)]}
        document = Document(render(data, bundle=""))
        return document.words, [row[2] for row in document.cells("targets")]

    words, met = shown("SUSPECT")
    assert "reasons of the SUSPECT trials" in words and "More trials" not in words and "raise trials" not in words and met == ["yes?"]
    words, met = shown("VALID")
    assert "reasons of the SUSPECT trials" not in words and "More trials" in words and "raise trials" in words and met == ["yes"]
    words, _ = shown("SUSPECT", misses=32)
    assert "reasons of the SUSPECT trials" not in words and "More trials" in words


def test_every_repetition_must_meet_the_targets():
    items = [measurement("a", 8, repetition=number) for number in (1, 2, 3)]
    for second, met in ((reached(), True), (reached(met=False), False), (None, None)):
        (line,) = workload(run(*items, attained=[reached(), second, reached()])).lines
        assert line.met is met
    assert workload(run(*items, attained=[None] * 3)).choices[0].best is None


def test_valid_load_comes_before_a_faster_suspect_one():
    items = [measurement("a", 8, output=800.0), measurement("a", 16, output=1500.0, verdict="SUSPECT")]
    (choice,) = workload(run(*items, attained=[reached(), reached()])).choices
    assert choice.best.point["concurrency"] == 8
    (alone,) = workload(run(items[1], attained=[reached()])).choices
    assert alone.best.point["verdict"] == "SUSPECT"


def test_run_without_targets_has_no_table():
    data = run(measurement(), attained=[None])
    data.config = {"workloads": {"chat": {}}}
    assert targets.workloads(points(data), data) == []


@pytest.mark.parametrize(
    ("attained", "met", "share"), [(reached(), "yes", 0.99), (reached(met=False, share=0.2), "no", 0.2), (None, None, None)]
)
def test_table_has_attainment_and_goodput(attained, met, share):
    data = run(measurement(), attained=[attained])
    (row,) = table.rows(table.tidy(data.measurements, attainments=data.attainments))
    assert (row["slo_met"], row["slo_attainment"]) == (met, share)
    rates = (row["goodput_requests_per_s"], row["goodput_output_tokens_per_s"])
    assert rates == ((None, None) if share is None else pytest.approx((20.0 * share, 640.0 * share)))


def test_report_has_the_targets_and_one_row_per_load():
    items = [measurement("a", 8), measurement("a", 16), measurement("b", 8)]
    data = run(*items, attained=[reached(), reached(met=False), None])
    document = Document(render(data, bundle=""))
    assert [row[2] for row in document.cells("targets")] == ["yes", "no", "too few requests"]


def test_front_has_the_loads_that_no_other_beats():
    speeds = {1: (10.0, 100.0), 2: (20.0, 180.0), 4: (30.0, 170.0), 8: (30.0, 300.0)}
    items = [measurement("a", load, output=output, tpot=tpot) for load, (tpot, output) in speeds.items()]
    data = run(*items, attained=[None] * 4)
    ((name, spec, rows),) = targets.pareto(points(data), data, ["a"])
    assert (name, len(spec["layer"])) == ("chat", 3)
    scale = spec["layer"][0]["encoding"]["x"]["scale"]
    assert scale["domainMin"] == 0 and "padding" not in scale, "padding would show negative speeds"
    assert [row["front"] for row in rows] == [True, True, False, True]
    assert [row["user"] for row in rows] == [pytest.approx(output / (0.99 * load)) for load, (_, output) in speeds.items()]
    block = page.content(data).block
    assert [row["front"] for row in block["pareto"]["pareto-0"]] == [True, True, False, True]
