"""Specifications of the plots: Vega-Lite compiles them, and they show only accepted measurements."""

from __future__ import annotations

import json
import re

import pytest
import vl_convert

from builders import report_data, report_data_repeated
from servemark.records import Startup, StartupPhase
from servemark.report import charts, starting, table, views
from servemark.report.table import rows, tidy

CLUSTER, (OTHER, RESPONSE) = starting.CLUSTER, starting.AFTER_PHASES


def panels(measurements):
    shown = sorted({item.deployment for item in measurements if item.verdict != "INVALID"})
    return charts.panels(rows(tidy(measurements)), shown)


def all_specs(data):
    specs = [{**spec, "data": {"values": panel.values[name]}} for panel in panels(data.measurements) for name, spec in panel.specs.items()]
    startups = list(data.startups.values())
    bars = [{**row, "phase": starting.phases(startups)[row["number"] - 1]} for row in starting.bars(startups)]
    return [*specs, {**starting.spec(startups), "data": {"values": bars}}]


@pytest.mark.parametrize("build", [report_data.demo, report_data.troubled], ids=["demo", "troubled"])
def test_every_specification_compiles(build):
    for spec in all_specs(build()):
        assert vl_convert.vegalite_to_vega(spec)["marks"]


def test_bars_are_visible_where_rows_have_them():
    (panel,) = panels([report_data.measurement(repetition=number) for number in (1, 2, 3)])
    invisible = []
    for bar in ({"steady_p50": [20.0, 30.0]}, None):
        values = [{**row, "bar": bar} for row in panel.values["ttft"]]
        drawn = vl_convert.vegalite_to_svg({**panel.specs["ttft"], "data": {"values": values}})
        invisible.append(drawn.count(' opacity="0"'))
    # A bar and its two ends.
    assert invisible[1] - invisible[0] == 3


@pytest.mark.parametrize("build", [report_data.demo, report_data.troubled], ids=["demo", "troubled"])
def test_specifications_contain_no_placeholder(build):
    for spec in all_specs(build()):
        assert not re.search(r'"\$[a-z]', json.dumps({**spec, "$schema": "", "data": None}).replace('"$schema"', ""))


def test_specifications_contain_no_url():
    for spec in all_specs(report_data.troubled()):
        assert "url" not in json.dumps({**spec, "$schema": "", "data": None})


def test_invalid_measurements_are_in_no_plot():
    data = report_data.troubled()
    text = json.dumps([(panel.specs, panel.values) for panel in panels(data.measurements)])
    assert str(report_data.POISON)[:5] not in text
    assert "tp4" not in text


def test_workload_with_concurrency_and_rate_gets_two_panels():
    items = [
        report_data.measurement(concurrency=8),
        report_data.measurement(concurrency=None, request_rate=2.0),
        report_data.measurement(concurrency=16, request_rate=2.0),
        report_data.measurement(concurrency=None, repetition=3),
    ]
    labels = [panel.label for panel in panels(items)]
    assert len(set(labels)) == 3 and all("chat" in label for label in labels)
    assert sorted(("rate" in label, "16" in label) for label in labels) == [(False, False), (True, False), (True, True)]


def test_loads_with_different_request_counts_are_one_curve():
    items = [report_data.measurement(concurrency=load, requests=4 * load, completed=4 * load) for load in (8, 16, 32)]
    (panel,) = panels(items)
    assert panel.specs["ttft"]["layer"][1]["encoding"]["x"]["axis"]["values"] == [8, 16, 32]
    assert len(table.aggregate(tidy(items))) == 3


def test_bars_are_the_intervals_of_loads_with_three_repetitions():
    data = report_data_repeated.repeated()
    frame = tidy(data.measurements)
    points = views.medians(table.aggregate(frame))
    shown = charts.panels(rows(frame), sorted(report_data_repeated.SPEEDS), (*charts.THROUGHPUTS, charts.PER_DEVICE), points)
    by_label = {panel.label: panel for panel in shown}
    bars = by_label["chat, by concurrency"].bars
    assert len(bars["throughput"]) == len(report_data_repeated.SPEEDS) * len(report_data_repeated.LOADS)
    (bar,) = [bar for bar in bars["ttft"] if (bar["deployment"], bar["load"]) == ("slower", 32)]
    point = next(point for point in points if (point["deployment"], point["workload"], point["concurrency"]) == ("slower", "chat", 32))
    assert bar["p99"] == [point["ttft_p99_ms_low"], point["ttft_p99_ms_high"]]
    assert all(not rows_of for rows_of in by_label["twice, by concurrency"].bars.values())


def test_latency_without_any_value_gets_no_plot():
    (panel,) = panels([report_data.measurement(itl_ms=None)])
    assert list(panel.specs) == ["throughput", "ttft", "tpot", "e2el"]


@pytest.mark.parametrize(("loads", "kind"), [((1, 4, 8), "log"), ((4, 5, 6), "linear"), ((3,), "linear")])
def test_wide_sweeps_get_a_logarithmic_axis(loads, kind):
    (panel,) = panels([report_data.measurement(concurrency=load) for load in loads])
    x = panel.specs["ttft"]["layer"][1]["encoding"]["x"]
    assert x["scale"]["type"] == kind
    assert x["axis"]["values"] == list(loads)


def test_long_sweeps_have_no_explicit_ticks():
    (panel,) = panels([report_data.measurement(concurrency=load) for load in range(1, 20)])
    assert "values" not in panel.specs["ttft"]["layer"][1]["encoding"]["x"]["axis"]


def test_series_beyond_colours_differ_by_shape():
    looks = charts.series([f"d{index}" for index in range(20)])
    assert len({(look["colour"], look["shape"]) for look in looks}) == 20
    assert {look["colour"] for look in looks} == set(range(1, charts.COLOURS + 1))


def test_startup_segments_add_up_to_the_first_token():
    record = report_data.demo().startups["ray-tp2"]
    segments = dict(starting.segments(record))
    assert sum(segments.values()) == pytest.approx(record.cluster_seconds + record.seconds_to_first_token)
    assert next(iter(segments)) == CLUSTER
    assert segments[OTHER] == pytest.approx(41.3 - 17.8 - 0.6 - 8.9)


def test_overlapping_phases_give_no_negative_remainder():
    record = Startup(
        deployment="x",
        seconds_to_health=10.0,
        seconds_to_first_token=11.0,
        phases=(StartupPhase(name="a", seconds=8), StartupPhase(name="b", seconds=8)),
    )
    assert starting.segments(record) == [("a", 8), ("b", 8), (RESPONSE, 1.0)]


def test_rounding_error_is_no_segment():
    """Python 3.11 and 3.12 sum these phases of a real archive with a difference of 3e-14."""
    seconds = (48.296, 20.654, 1.136, 25.61, 22.6, 133.0, 3.784)
    phases = tuple(_phase(f"phase {number}", each) for number, each in enumerate(seconds))
    for noise in (0.0, 3e-14, -3e-14):
        record = Startup(deployment="x", phases=phases, seconds_to_health=255.08 + noise, seconds_to_first_token=255.36)
        assert OTHER not in dict(starting.segments(record))


def test_startup_phases_are_in_order_of_time():
    short = Startup(deployment="a", seconds_to_health=5.0, seconds_to_first_token=6.0, phases=(_phase("load", 5.0),))
    long = Startup(deployment="b", cluster_seconds=3.0, seconds_to_health=9.0, phases=(_phase("compile", 2.0),))
    assert starting.phases([short, long]) == [CLUSTER, "load", "compile", OTHER, RESPONSE]


def _phase(name, seconds):
    return StartupPhase(name=name, seconds=seconds)


@pytest.mark.parametrize(
    ("found", "note", "same_as"),
    [
        ("none", "made", ("empty", "made")),
        ("filled", "loaded", ("filled", None)),
        (None, "loaded", (None, "made")),
    ],
)
def test_compile_cache_state_is_described(found, note, same_as):
    def caches(found, note):
        return starting.caches(Startup(deployment="x", compile_cache=found, phases=(StartupPhase(name="compile", seconds=4.5, note=note),)))

    assert caches(found, note) == caches(*same_as)
    different = {caches(*case) for case in (("none", "made"), ("other", "made"), ("filled", "loaded"), ("filled", "made"), (None, "made"))}
    assert len(different) == 5 and None in different


def test_startup_without_any_time_gives_no_plot():
    assert starting.spec([Startup(deployment="x")]) is None


def test_bundle_can_be_inlined():
    text = charts.bundle()
    assert "</script" not in text.lower()
    assert "<!--" not in text
    assert "\r" not in text
    assert len(text) < 2_000_000


def test_bundle_is_kept_in_the_environment(tmp_path, monkeypatch):
    monkeypatch.setattr(charts.sys, "prefix", str(tmp_path))
    made = charts.bundle.__wrapped__()
    (kept,) = tmp_path.glob("share/servemark/vega-*.js")
    assert kept.read_text(encoding="utf-8") == made
    monkeypatch.setattr(charts.vl_convert, "javascript_bundle", None)
    assert charts.bundle.__wrapped__() == made


def test_bundle_is_made_where_the_environment_takes_no_files(tmp_path, monkeypatch):
    (tmp_path / "share").write_text("a file in place of the folder")
    monkeypatch.setattr(charts.sys, "prefix", str(tmp_path))
    assert "vegaEmbed" in charts.bundle.__wrapped__()
