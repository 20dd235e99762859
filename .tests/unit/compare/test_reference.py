"""Published numbers as one side of a comparison."""

from __future__ import annotations

from dataclasses import replace

import pytest
import yaml

from builders.compared_runs import runs
from builders.paths import ROOT
from servemark.compare import reference
from servemark.compare.compared import compare
from servemark.compare.errors import NotComparable
from servemark.compare.side import same_model
from servemark.compare.text import text

SHIPPED = sorted((ROOT / "config" / "references").glob("*.yaml"))
MODEL = "hf:org/tiny@" + "a" * 40


@pytest.fixture
def published(tmp_path):
    """Return a function that writes a reference for the run of ``runs``."""

    def write(**changes):
        load = {"dataset": "random", "concurrency": 32, "metrics": {"throughput": 9000.0, "mean_ttft": 70.0}}
        shape = runs().measurements[0].load
        load |= {"requests": shape.requests, "input_tokens": shape.prompts.input_tokens, "output_tokens": shape.prompts.output_tokens}
        options = changes.pop("options", {"max-model-len": 2048})
        deployment = {"topology": {"tensor_parallel": 4}, "options": options, "loads": [load | changes.pop("load", {})]}
        content = {
            "name": "published", "source": "a tutorial", "date": "2026-02-24", "model": MODEL, "software": {"vLLM": "0.15.1"},
            "hardware": {"GPUs": "4 x GH200"}, "deployments": {"one-node": deployment},
        }  # fmt: skip
        path = tmp_path / "published.yaml"
        path.write_text(yaml.safe_dump(content | changes))
        return path

    return write


def staged(source: str = MODEL):
    """Return a run whose model comes from ``source``."""
    data = runs()
    return replace(data, manifests={name: one.model_copy(update={"source": source}) for name, one in data.manifests.items()})


@pytest.mark.parametrize("reference_first", [True, False])
def test_reference_gives_ratios_without_interval(folder, published, reference_first):
    sides = [published(), folder(staged())]
    found = compare(*(sides if reference_first else sides[::-1])).record
    (point,) = found.points
    assert {metric.metric for metric in point.metrics} == {"throughput", "mean_ttft"}
    for metric in point.metrics:
        assert (metric.low, metric.part, metric.verdict) == (None, "whole run", "cannot tell")
        assert metric.why == "the reference has no repetitions"
        assert metric.ratio == pytest.approx(metric.b / metric.a)
    side = found.a if reference_first else found.b
    assert (side.kind, side.source) == ("reference", "a tutorial, 2026-02-24")
    assert len(found.one_sided) == 3
    assert "the reference has no repetitions" in text(found)


def test_only_what_a_reference_states_is_compared(folder, published):
    found = compare(published(), folder(staged())).record
    parts = {(one.part, one.name) for one in found.differences}
    assert {("software", "vLLM"), ("hardware", "GPUs"), ("options", "max-model-len")} <= parts
    assert not parts & {("software", "torch"), ("hardware", "node"), ("software", "servemark")}


def test_other_model_precision_or_two_references_are_refused(folder, published):
    for other in (folder(runs()), published()):
        with pytest.raises(NotComparable):
            compare(published(), other)
    data = staged()
    plan = data.plans["equal-a"].model_copy(update={"options": {"load-format": "dummy"}})
    with pytest.raises(NotComparable, match="load-format"):
        compare(published(), folder(replace(data, plans={"equal-a": plan})))


def of_two_deployments(published, first, second):
    """Return a reference with the deployments ``first`` and ``second``; each is a topology and more options."""
    path = published()
    content = yaml.safe_load(path.read_text())
    (one,) = content["deployments"].values()
    content["deployments"] = {
        name: {**one, "topology": topology, "options": one["options"] | options}
        for name, (topology, options) in (("first", first), ("second", second))
    }
    path.write_text(yaml.safe_dump(content))
    return path


def test_one_deployment_is_compared_with_the_closest_one_of_as_many_ranks(folder, published):
    quantized = ({"tensor_parallel": 2, "data_parallel": 2}, {"quantization": "fp8"})
    path = of_two_deployments(published, quantized, ({"data_parallel": 4}, {}))
    for sides, name in (([path, folder(staged())], "second / equal-a"), ([folder(staged()), path], "equal-a / second")):
        found = compare(*sides).record
        assert {point.pair for point in found.points} == {name}
        assert ("topology", "data_parallel") in {(one.part, one.name) for one in found.differences}


def test_deployments_with_other_numbers_of_ranks_are_refused_with_shape_model_and_load_format(folder, published):
    data = staged("/data/tiny")
    plan = data.plans["equal-a"].model_copy(update={"options": {"load-format": "dummy"}})
    path = of_two_deployments(published, ({"tensor_parallel": 8}, {}), ({"tensor_parallel": 2}, {}))
    with pytest.raises(NotComparable) as refused:
        compare(path, folder(replace(data, plans={"equal-a": plan})))
    lines = [line.strip() for line in refused.value.what.splitlines()]
    for name, words in (
        ("A first", ("TP 8", MODEL, "auto")),
        ("A second", ("TP 2", MODEL)),
        ("B equal-a", ("TP 4", "/data/tiny", "dummy")),
    ):
        (line,) = (line for line in lines if line.startswith(f"{name}: "))
        assert all(word in line for word in words)


def test_refused_pair_names_model_and_load_format(folder, published):
    data = staged("/data/tiny")
    plan = data.plans["equal-a"].model_copy(update={"options": {"load-format": "dummy"}})
    with pytest.raises(NotComparable) as refused:
        compare(published(), folder(replace(data, plans={"equal-a": plan})))
    assert "another model (A " in refused.value.what and "another load-format (A not set, B dummy)" in refused.value.what


@pytest.mark.parametrize(
    ("source", "same"),
    [
        (MODEL, True),
        ("/data/hub/models--org--tiny/snapshots/" + "a" * 40 + "/", True),
        ("hf:org/tiny@" + "b" * 40, False),
        ("/data/tiny", False),
    ],
)
def test_model_is_the_same_revision_of_the_hub(source, same):
    (manifest,) = staged(source).manifests.values() if len(staged().manifests) == 1 else [staged(source).manifests["tiny"]]
    assert same_model(manifest, MODEL) is same


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"load": {"metrics": {"speed": 1.0}}}, "speed"),
        ({"load": {"metrics": {"throughput": -1.0}}}, "throughput"),
        ({"load": {"metrics": {}}}, "metrics"),
        ({"source": None}, "source"),
        ({"more": 1}, "more"),
        ({"deployments": {}}, "deployments"),
        ({"model": "gpt"}, "model"),
        ({"model": "hf:org/tiny"}, "model"),
        ({"model": "hf:tiny@main"}, "model"),
        ({"load": {"concurrency": 0}}, "deployments.one-node.loads[0].concurrency"),
        ({"load": {"concurrency": None}}, "deployments.one-node.loads[0].concurrency"),
        ({"load": {"request": 1}}, "deployments.one-node.loads[0].request:"),
        ({"options": {"max-num-seqs": {"a": 1}}}, "deployments.one-node.options.max-num-seqs"),
    ],
)
def test_bad_reference_is_refused_with_one_problem_and_its_key(published, changes, said):
    path = published(**changes)
    with pytest.raises(NotComparable) as refused:
        reference.read(path)
    assert (refused.value.exit_code, refused.value.reason) == (2, "bad_reference")
    problems = [line for line in refused.value.what.splitlines() if line.startswith(f"  {path}:")]
    assert len(problems) == 1 and said in problems[0]


def test_unknown_key_is_refused_with_the_keys_of_a_reference(published):
    with pytest.raises(NotComparable) as refused:
        reference.read(published(load={"request": 1}))
    (allowed,) = [line for line in refused.value.what.splitlines() if "allowed: " in line]
    assert set(allowed.partition("allowed: ")[2].split(", ")) == set(reference.Load.model_fields)


@pytest.mark.parametrize("text", ["", "- 1", "a: &a\n  b: *a\n", "text", "name: a\nname: b\n"])
def test_file_without_a_reference_is_refused_as_one(tmp_path, text):
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(NotComparable) as refused:
        reference.read(path)
    assert refused.value.reason == "bad_reference" and str(path) in refused.value.what
    assert "config/references" in refused.value.do and "config.yaml" not in refused.value.do


def test_options_of_a_reference_may_be_lists(published):
    (one,) = reference.read(published(options={"cudagraph-capture-sizes": [1, 2]})).deployments.values()
    assert one.options == {"cudagraph-capture-sizes": [1, 2]}


def test_file_that_is_no_yaml_is_refused(archive, tmp_path):
    (tmp_path / "bad.yaml").write_text("a: [")
    for name in ("bad.yaml", "missing.yaml"):
        with pytest.raises(NotComparable) as refused:
            compare(archive.path, tmp_path / name)
        assert refused.value.exit_code == 2


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_references_are_valid_and_consistent(path):
    found = reference.read(path)
    assert found.source and found.date and found.model.startswith("hf:")
    for item in reference.measurements(found):
        tokens = item.load.prompts.input_tokens + item.load.prompts.output_tokens
        assert item.total_throughput / item.output_throughput == pytest.approx(tokens / item.load.prompts.output_tokens, rel=1e-3)


def test_there_is_a_shipped_reference():
    assert [path.name for path in SHIPPED] == ["gpt-oss-120b-gh200.yaml"]
