"""Comparison of deployments with equal resources: groups, ratios, ranges."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from builders import report_data, report_data_cluster, report_data_repeated
from builders.report_data import measurement, plan
from servemark import records
from servemark.measurement.intervals import Interval
from servemark.report import comparison, views
from servemark.report.page import render
from servemark.report.table import aggregate, tidy


def groups(data):
    return comparison.groups(views.medians(aggregate(tidy(data.measurements))), data)


def run(*measurements, accelerator="cuda", **topologies):
    names = dict.fromkeys(item.deployment for item in measurements)
    plans = {name: plan(name, topology=topologies.get(name, records.Topology(devices_per_node=4, tensor_parallel=4))) for name in names}
    base = report_data.demo()
    return replace(base, hardware=report_data.hardware(accelerator=accelerator), measurements=measurements, plans=plans, config={})


def test_deployments_with_equal_gpus_are_compared_at_each_load():
    data = report_data_cluster.two_nodes()
    (group,) = groups(data)
    assert (group.workload, group.devices) == ("chat", 8)
    assert [(row.point["load"].replace("\u00a0", " "), row.point["deployment"]) for row in group.rows] == [
        (f"concurrency {load}", name) for load in (64, 256, 512) for name in ("tp2-x4", "tp4-pp2-ray")
    ]
    assert comparison.unit(data, 8).replace("\u00a0", " ") == "8 GPUs"


def test_deployment_without_a_counterpart_is_named_with_its_devices():
    text = render(report_data_cluster.two_nodes(), bundle="")
    (note,) = re.findall(r'<p class="note">Not compared, because[^<]*(?:<[^p][^>]*>[^<]*)*</p>', text)
    assert "plain" in note and "1\u00a0GPU" in note and "tp2-x4" not in note


def test_results_are_per_gpu_and_ratios_to_best():
    fast = [measurement("replicas", 8, number, output=value) for number, value in ((1, 800.0), (2, 820.0), (3, 840.0))]
    slow = [measurement("tp4", 8, number, output=value) for number, value in ((1, 400.0), (2, 410.0), (3, 450.0))]
    (group,) = groups(run(*fast, *slow))
    best, other = group.rows
    assert (best.point["deployment"], best.best is best.point, best.ratio, best.between) == ("replicas", True, 1.0, None)
    assert best.output[:3] == (205.0, 200.0, 210.0) and best.total[:3] == (615.0, 600.0, 630.0)
    interval = Interval.of([200.0, 205.0, 210.0])
    assert best.output[3:] == (pytest.approx(interval.low), pytest.approx(interval.high), 3)
    assert (other.best is best.point, other.ratio, other.between.words) == (True, 0.5, "different")
    assert other.between.low < 0.5 < other.between.high < 1


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ((810.0, 830.0, 820.0), "no difference shown"),
        ((790.0, 795.0, 799.0), "no difference shown"),
        ((600.0, 610.0, 605.0), "different"),
        ((600.0, 610.0), "cannot tell (2 repetitions)"),
        ((100.0,), "cannot tell (1 repetition)"),
        ((0.0, 600.0, 610.0), "cannot tell (a result is not positive)"),
    ],
)
def test_difference_needs_three_repetitions_and_an_interval_without_1(values, words):
    fast = [measurement("a", 8, number + 1, output=value) for number, value in enumerate((800.0, 860.0, 900.0))]
    slow = [measurement("b", 8, number + 1, output_throughput=value) for number, value in enumerate(values)]
    (_, other) = groups(run(*fast, *slow))[0].rows
    assert other.between.words.replace("\u00a0", " ") == words
    assert (other.between.low is None) == words.startswith("cannot tell")


def test_two_repetitions_far_apart_tell_nothing():
    fast = [measurement("a", 8, number, output=800.0 + number) for number in (1, 2)]
    slow = [measurement("b", 8, number, output=100.0 + number) for number in (1, 2)]
    (_, other) = groups(run(*fast, *slow))[0].rows
    assert other.between[:2] == (None, None) and other.between.words.replace("\u00a0", " ") == "cannot tell (2 repetitions)"


def test_other_models_and_precisions_are_shown_apart_with_the_difference():
    found = {group.differs: group for group in groups(report_data_repeated.repeated()) if group.workload == "chat"}
    assert {differs: sorted({row.point["deployment"] for row in group.rows}) for differs, group in found.items()} == {
        "model tiny, kv-cache-dtype not set": ["equal-a", "equal-b", "slower"],
        "model tiny, kv-cache-dtype fp8": ["fp8-cache"],
        "model llama-70b, kv-cache-dtype not set": ["large", "large-dp"],
    }
    # The load with an 8-bit cache is faster, and still no baseline of another deployment.
    assert {row.best["deployment"] for row in found["model tiny, kv-cache-dtype not set"].rows} == {"equal-b"}
    assert {row.best for row in found["model tiny, kv-cache-dtype fp8"].rows} == {None}
    slower = [row.between.words for row in found["model tiny, kv-cache-dtype not set"].rows if row.point["deployment"] == "slower"]
    assert slower == ["different"] * 3


def test_headline_shares_compare_the_same_model_and_precision():
    data = report_data_repeated.repeated()
    line = next(line for line in views.headlines(views.medians(aggregate(tidy(data.measurements))), data) if line["workload"] == "chat")
    shares = {card["deployment"]: card["share"] for card in line["cards"]}
    assert not line["comparable"]
    assert {name for name, share in shares.items() if share == 1.0} == {"equal-b", "fp8-cache", "large-dp"}
    assert 0.9 < shares["large"] < 1 and 0.8 < shares["slower"] < 0.9


def test_invalid_point_has_no_ratio_and_is_no_baseline():
    data = run(measurement("a", 8), report_data.invalid("b", concurrency=8), report_data.invalid("a", concurrency=16),
               report_data.invalid("b", concurrency=16))  # fmt: skip
    (group,) = groups(data)
    by_place = {(row.point["deployment"], row.point["load"].replace("\u00a0", " ")): row for row in group.rows}
    assert by_place["b", "concurrency 8"].ratio is None and by_place["b", "concurrency 8"].output is None
    assert by_place["a", "concurrency 8"].ratio == 1.0
    assert {by_place[name, "concurrency 16"].best for name in "ab"} == {None}
    assert str(report_data.POISON)[:5] not in str(group)


def test_suspect_repetition_marks_the_row():
    doubtful = measurement("b", 8).model_copy(update={"verdict": "SUSPECT"})
    rows = groups(run(measurement("a", 8), doubtful))[0].rows
    assert [row.point["verdict"] for row in rows] == ["VALID", "SUSPECT"]


def test_different_gpu_counts_or_workloads_are_not_compared():
    data = run(measurement("a", 8), measurement("b", 8), measurement("c", 8, workload="other"), b=records.Topology(replicas=8))
    assert groups(data) == []


def test_unit_on_cpu_is_ranks():
    data = run(measurement("a", 8), measurement("b", 8), accelerator="cpu")
    assert comparison.unit(data, groups(data)[0].devices).replace("\u00a0", " ") == "4 ranks"


def test_zero_throughput_gives_no_ratio():
    data = run(measurement("a", 8, output_throughput=0.0), measurement("b", 8, output_throughput=0.0))
    assert [row.ratio for row in groups(data)[0].rows] == [None, None]
