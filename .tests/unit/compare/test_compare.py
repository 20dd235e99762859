"""Two runs point by point: what differs, the interval of each ratio, points of one side, refusals."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from builders import report_data
from builders.compared_runs import renamed, runs, scaled
from servemark.compare.compared import compare
from servemark.compare.errors import NotComparable
from servemark.compare.metrics import METRICS
from servemark.compare.text import text
from servemark.measurement.intervals import Interval
from servemark.records import Comparison
from servemark.report import table


def verdicts(found: Comparison) -> set[str]:
    return {metric.verdict for point in found.points for metric in point.metrics}


def test_identical_archives_show_no_difference(archive):
    found = compare(archive.path, archive.path).record
    assert verdicts(found) == {"no difference shown"}
    assert found.differences == () and found.one_sided == ()
    assert [len(point.metrics) for point in found.points] == [len(METRICS)] * 2
    assert found.a.identity == found.b.identity and found.a.kind == "archive"


def test_slower_archive_is_worse_in_every_metric(archive, slower_archive):
    found = compare(archive.path, slower_archive.path).record
    assert verdicts(found) == {"worse"}
    for metric in found.points[0].metrics:
        assert metric.low <= metric.ratio * (1 + 1e-9) and metric.ratio <= metric.high * (1 + 1e-9)
        # The client's own pause between two requests does not grow.
        assert metric.ratio == pytest.approx(1 / 1.2 if METRICS[metric.metric].rises else 1.2, rel=0.01)
    assert verdicts(compare(slower_archive.path, archive.path).record) == {"better"}


def test_folder_and_archive_of_a_run_compare_alike(archive):
    mixed = compare(archive.folder, archive.path).record
    assert mixed.a.kind == "folder" and verdicts(mixed) == {"no difference shown"}


def test_interval_is_the_one_of_the_report(folder):
    before, after = runs(("equal-a",)), renamed(runs(("slower",)), "slower", "equal-a")
    found = compare(folder(before), folder(after)).record
    values = [[item.steady.output_throughput for item in data.measurements if item.load.concurrency == 32] for data in (before, after)]
    expected = Interval.of(values[1]).over(Interval.of(values[0]))
    (point,) = (one for one in found.points if one.load == "c=32")
    metric = point.metrics[0]
    assert (metric.metric, metric.part, metric.verdict) == ("throughput", "steady state", "worse")
    assert np.allclose((metric.low, metric.high), (expected.low, expected.high))
    assert metric.ratio == pytest.approx(np.median(values[1]) / np.median(values[0]))


def test_metric_without_a_steady_state_is_compared_in_the_whole_run(folder):
    data = runs()
    other = replace(data, measurements=[item.model_copy(update={"steady": None}) for item in data.measurements])
    parts = {metric.part for point in compare(folder(data), folder(other)).record.points for metric in point.metrics}
    assert parts == {"whole run"}


def test_two_repetitions_cannot_tell(folder):
    data = runs()
    found = compare(folder(data), folder(data)).record
    (twice,) = (point for point in found.points if point.workload == "twice")
    assert {(metric.verdict, metric.why, metric.low) for metric in twice.metrics} == {
        ("cannot tell", "A has 2 repetitions and B has 2 repetitions", None)
    }


def test_side_with_too_few_repetitions_is_named(folder):
    data = runs()
    fewer = [item for item in data.measurements if item.load.repetition == 1]
    found = compare(folder(data), folder(replace(data, measurements=fewer))).record
    whys = {metric.why for point in found.points if point.workload != "twice" for metric in point.metrics}
    assert whys == {"B has 1 repetition"}


def test_lists_are_compared_in_words(folder):
    data = runs()
    plan = data.plans["equal-a"].model_copy(update={"options": {"cudagraph-capture-sizes": [1, 2]}})
    found = compare(folder(data), folder(replace(data, plans={"equal-a": plan}))).record
    assert {one.name: one.b for one in found.differences}["cudagraph-capture-sizes"] == "1, 2"


def test_suspect_points_are_marked(folder):
    data = runs()
    marked = [item.model_copy(update={"verdict": "SUSPECT"}) if item.load.concurrency == 32 else item for item in data.measurements]
    found = compare(folder(data), folder(replace(data, measurements=marked))).record
    assert {(point.load, point.suspect_a, point.suspect_b) for point in found.points if point.suspect_b} == {("c=32", False, True)}
    assert text(found).count("? ") > len(METRICS)
    assert found.suspect == 1 and "(1 with a SUSPECT repetition)" in text(found)
    assert compare(folder(data), folder(data)).record.suspect == 0


def test_points_of_one_side_are_named_with_the_reason(folder):
    data, wider = runs(), runs(("equal-a", "slower"))
    some = [item for item in data.measurements if item.load.concurrency != 128]
    some = [item.model_copy(update={"verdict": "INVALID"}) if item.load.concurrency == 32 else item for item in some]
    planned = {"equal-a": data.plans["equal-a"].model_copy(update={"points": data.plans["equal-a"].points[:6]})}
    found = compare(folder(wider), folder(replace(data, measurements=some, plans=planned))).record
    assert {point.load for point in found.points} == {"c=8"}
    alone = {(point.side, point.deployment, point.load): point.why for point in found.one_sided}
    assert alone["A", "equal-a", "c=32"] == "B: no accepted repetition"
    assert alone["A", "equal-a", "c=128"] == "no such load on the other side"
    assert alone["A", "slower", "c=8"] == "no deployment of this name or shape on the other side"
    assert len(found.one_sided) == 7, "three loads and `twice` of slower, and of equal-a c=32, c=128 and `twice`"


def test_differences_name_versions_hardware_and_options(folder):
    data = runs()
    check = data.checks["cpu"].model_copy(update={"vllm": "0.33.0", "digest": "f" * 64})
    plan = data.plans["equal-a"].model_copy(
        update={"options": {"max-model-len": 8192}, "variables": {"HF_TOKEN": "hf_1", "OMP_NUM_THREADS": "4"}}
    )
    machine = data.machine.model_copy(update={"host": "node02"})
    other = replace(data, checks={"cpu": check}, plans={"equal-a": plan}, hardware=machine)
    found = compare(folder(data), folder(other)).record
    differences = {(one.part, one.name): (one.a, one.b) for one in found.differences}
    assert differences["software", "vLLM"] == (data.checks["cpu"].vllm, "0.33.0")
    assert differences["hardware", "node"] == (data.machine.host, "node02")
    assert differences["options", "max-model-len"] == ("4096", "8192")
    assert differences["variables", "OMP_NUM_THREADS"] == (None, "4")
    assert "hf_1" not in found.to_json()
    assert found.differences[0].part == "software"


def test_whole_runs_of_another_length_are_not_judged(folder):
    data = runs()

    def longer(item):
        return item.model_copy(update={"steady": None, "load": item.load.model_copy(update={"requests": 999})})

    plan = data.plans["equal-a"]
    planned = plan.model_copy(
        update={"points": tuple(one.model_copy(update={"load": one.load.model_copy(update={"requests": 999})}) for one in plan.points)}
    )
    other = replace(data, measurements=[longer(item) for item in data.measurements], plans={"equal-a": planned})
    found = compare(folder(data), folder(other)).record
    assert verdicts(found) == {"cannot tell"}
    assert ("load", "999") in {(one.part, one.b) for one in found.differences}


def test_deployments_pair_by_name_then_by_shape(folder):
    before = runs(("equal-a", "slower"))
    found = compare(folder(before), folder(renamed(before, "slower", "quick"))).record
    assert {point.pair for point in found.points} == {"equal-a", "slower / quick"}
    assert found.one_sided == ()


def test_one_deployment_on_each_side_is_a_pair_whatever_differs(folder):
    before = runs()
    plan = before.plans["equal-a"].model_copy(update={"topology": report_data.SHAPES["tp2-x4"]})
    after = renamed(replace(before, plans={"equal-a": plan}), "equal-a", "replicas")
    found = compare(folder(before), folder(after)).record
    assert {point.pair for point in found.points} == {"equal-a / replicas"}
    assert ("topology", "replicas", "1", "4") in {(one.part, one.name, one.a, one.b) for one in found.differences}


@pytest.mark.parametrize(
    ("names", "said"),
    [(("equal-a", "large"), "another model (A "), (("equal-a", "fp8-cache"), "kv-cache-dtype")],
)
def test_other_model_or_precision_is_refused(folder, names, said):
    one, other = (runs((name,)) for name in names)
    # The builder's models have the same files.
    large = other.manifests["llama-70b"]
    other = replace(other, manifests=other.manifests | {"llama-70b": large.model_copy(update={"files": large.files[:1]})})
    with pytest.raises(NotComparable) as refused:
        compare(folder(one), folder(other))
    assert refused.value.exit_code == 2 and refused.value.reason == "not_comparable"
    assert said in refused.value.what


def test_other_workload_is_refused_with_what_differs(folder):
    data = runs()

    def asked(load):
        return load.model_copy(update={"prompts": load.prompts.model_copy(update={"input_tokens": 2048})})

    plan = data.plans["equal-a"]
    planned = plan.model_copy(update={"points": tuple(one.model_copy(update={"load": asked(one.load)}) for one in plan.points)})
    items = [item.model_copy(update={"load": asked(item.load)}) for item in data.measurements]
    with pytest.raises(NotComparable, match="input_tokens"):
        compare(folder(data), folder(replace(data, measurements=items, plans={"equal-a": planned})))


def test_incomparable_pair_is_named_beside_a_comparable_one(folder):
    data = runs(("equal-a", "slower"))
    plan = data.plans["slower"].model_copy(update={"options": {"dtype": "float16"}})
    found = compare(folder(data), folder(replace(data, plans=data.plans | {"slower": plan}))).record
    assert {point.pair for point in found.points} == {"equal-a"}
    assert {(one.side, one.deployment) for one in found.one_sided} == {("A", "slower"), ("B", "slower")}


def test_contradictory_archive_is_refused_with_the_message_of_verify(run):
    before = run.path
    kept = before.with_name("before.tar.zst")
    kept.write_bytes(before.read_bytes())
    run.edit_json("deployments/plain/plan.json", lambda plan: plan["options"].update({"dtype": "float16"}))
    run.seal()
    with pytest.raises(NotComparable) as refused:
        compare(kept, run.path)
    assert refused.value.reason == "archive_wrong" and refused.value.exit_code == 2
    assert "key_parts: options: dtype" in refused.value.what


@pytest.mark.parametrize("name", ["nowhere", "empty", "text.tar.zst"])
def test_side_that_is_no_run_is_refused(tmp_path, archive, name):
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.tar.zst").write_text("text")
    with pytest.raises(NotComparable) as refused:
        compare(archive.path, tmp_path / name)
    assert refused.value.exit_code == 2 and refused.value.do


def test_text_fits_the_terminal_and_has_no_control_characters(folder):
    name = "x" * 80 + "\x1b[31m"
    data = renamed(runs(("equal-a", "slower")), "slower", "slower")
    host = data.machine.model_copy(update={"host": name})
    found = text(compare(folder(data), folder(replace(data, hardware=host))).record)
    assert [line for line in found.splitlines() if len(line) > table.WIDTH] == []
    assert "\x1b" not in found


def test_many_points_print_only_those_that_differ(folder):
    data = runs()
    plan = data.plans["equal-a"]
    loads = [item.model_copy(update={"load": item.load.model_copy(update={"name": f"w{at}-{item.load.name}", "workload": f"w{at}"})})
             for at in range(12) for item in data.measurements]  # fmt: skip
    points = tuple(plan.points[0].model_copy(update={"load": item.load}) for item in loads)
    before = replace(data, measurements=loads, plans={"equal-a": plan.model_copy(update={"points": points})})
    after = replace(before, measurements=[scaled(item, 0.5) if item.load.workload == "w3" else item for item in loads])
    found = compare(folder(before), folder(after)).record
    printed = text(found)
    assert len(found.points) == 36, "`twice` joins the first load of a workload"
    assert printed.count("output tokens/s") == sum(
        metric.verdict == "worse" for point in found.points for metric in point.metrics if metric.metric == "throughput"
    ) == 3  # fmt: skip


def test_record_is_read_as_it_was_written(tmp_path, archive):
    found = compare(archive.path, archive.path).record
    found.write(tmp_path / "compare.json")
    assert Comparison.read(tmp_path / "compare.json") == found
    assert json.loads(Path(tmp_path / "compare.json").read_text())["kind"] == "comparison"
