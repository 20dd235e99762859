"""Latencies in bins: each sample is counted once, in the same bins for all deployments."""

from __future__ import annotations

import json

import numpy as np
import pytest
import vl_convert

from builders import report_data, report_data_dataset
from builders.archived_run import raw_result
from builders.report_document import Document
from servemark.records import Lengths, StagedPrompts
from servemark.report import distributions, formatting, page
from servemark.report.distributions import LINEAR_BINS, LOGARITHMIC_EDGES, Distribution, bins


def counted(found: distributions.Bins, name: str, value: float) -> int:
    """The count of the bin that holds a value."""
    (index,) = [i for i, (a, b) in enumerate(zip(found.edges, found.edges[1:], strict=False)) if a <= value < b]
    return found.counts[name][index]


@pytest.mark.parametrize(
    ("samples", "logarithmic"),
    [
        ([8.0, 8.1, 9.7], False), ([0.3, 0.7, 2.9], False), ([1.0, 100.0], True), ([0.0, 0.004, 3.0], True), ([5.0], False),
        ([0.0, 0.0], False), ([1e300, 1e300], True), ([1e300, 1.0], True), ([0.1 + 0.2, 0.3], False), ([1e-7, 3e-7], False),
    ],
)  # fmt: skip
def test_each_sample_is_in_one_bin_and_outer_bins_are_filled(samples, logarithmic):
    found = bins({"a": np.asarray(samples)})
    assert found.logarithmic is logarithmic
    counts = found.counts["a"]
    assert sum(counts) == len(samples) and counts[0] > 0 and counts[-1] > 0
    assert len(found.edges) == len(counts) + 1 and list(found.edges) == sorted(found.edges)
    json.dumps(found.edges, allow_nan=False)
    if not logarithmic:
        assert len(counts) <= LINEAR_BINS and all(counted(found, "a", sample) for sample in samples)


def test_bins_equal_numpy_histogram_for_all_deployments():
    generator = np.random.default_rng(1)
    samples = {name: generator.lognormal(3, 1, 400) for name in ("a", "b")}
    found = bins(samples)
    assert found.logarithmic and set(found.edges) <= {0.0, *LOGARITHMIC_EDGES}
    for name, values in samples.items():
        expected, _ = np.histogram(values, found.edges)
        assert list(found.counts[name]) == list(expected)


def test_linear_edges_are_round_numbers():
    found = bins({"a": np.linspace(8.0, 9.6, 50)})
    assert found.edges[:4] == (8.0, 8.05, 8.1, 8.15)


def results(tmp_path, *points, name="plain"):
    found = []
    for concurrency, repetition, verdict in points:
        path = tmp_path / f"{name}-{concurrency}-{repetition}.json"
        path.write_text(json.dumps(raw_result(concurrency, repetition)))
        record = report_data.measurement(name, concurrency, repetition).model_copy(update={"verdict": verdict})
        found.append((record, path))
    return found


def test_bins_count_all_accepted_repetitions(tmp_path):
    mine = results(tmp_path, (1, 1, "VALID"), (1, 2, "SUSPECT"), (2, 1, "INVALID"))
    (found,) = distributions.distributions(mine)
    assert (found.workload, found.concurrency, found.request_rate) == ("chat", 1, None)
    assert {metric: sum(of.counts["plain"]) for metric, of in found.metrics.items()} == {
        "ttft": 16, "tpot": 16, "itl": 48, "e2el": 16,
    }  # fmt: skip
    raw = raw_result(1, 1)
    assert counted(found.metrics["ttft"], "plain", 1000 * raw["ttfts"][0]) > 0
    assert found.metrics["e2el"].edges[0] <= 1000 * min(raw["latencies"])


def test_unreadable_results_are_skipped(tmp_path):
    mine = results(tmp_path, (1, 1, "VALID"), (2, 1, "VALID"))
    mine[1][1].write_text("{}")
    assert [item.concurrency for item in distributions.distributions(mine)] == [1]


def test_many_loads_are_reduced_to_outer_then_heaviest(tmp_path):
    mine = results(tmp_path, *((load, 1, "VALID") for load in (1, 2, 4, 8)))
    kept = {most: [item.concurrency for item in distributions.distributions(mine, most)] for most in (4, 3, 1)}
    assert kept == {4: [1, 2, 4, 8], 3: [1, 8], 1: [8]}
    assert distributions.left_out(distributions.distributions(mine, 3), _accepted(1, 2, 4, 8))
    assert not distributions.left_out(distributions.distributions(mine), _accepted(1, 2, 4, 8))


def _accepted(*loads):
    return [{"workload": "chat", "load": load, "repetitions_accepted": 1} for load in loads]


def test_heaviest_load_of_the_first_workload_is_shown_first():
    found = [Distribution("burst", None, 2.0), Distribution("burst", None, 8.0), Distribution("chat", 1, None)]
    assert distributions.heaviest(found) == 1
    assert distributions.heaviest([]) == 0


def test_distribution_specifications_compile_without_data():
    data = report_data.troubled()
    specs = distributions.specs(["plain", "ray-tp2", report_data.HOSTILE])
    assert list(specs) == [*formatting.METRICS, *formatting.LENGTHS]
    for spec in specs.values():
        assert spec["data"]["values"] == []
        values = [{"deployment": "plain", "low": 1.0, "high": 1.12, "count": 3, "share": 100.0, "range": "1 to 1.12"}]
        assert vl_convert.vegalite_to_vega({**spec, "data": {"values": values}})["marks"]
    loads = page.content(data).block["distributions"]
    assert [sum(load["ttft"]["counts"]["plain"]) for load in loads[:3]] == [64, 64, 64]


@pytest.mark.parametrize(
    ("lengths", "edges"),
    [
        ([10, 12, 12, 15], (10.0, 11.0, 12.0, 13.0, 14.0, 15.0, 16.0)),
        ([4], (4.0, 5.0)),
        ([100, 900], None),
        ([3, 100, 101], None),
        ([0, 2], (0.0, 1.0, 2.0, 3.0)),
    ],
)
def test_bins_of_lengths_have_whole_edges(lengths, edges):
    found = bins({"a": np.asarray(lengths, dtype=float)}, whole=True)
    assert all(edge == int(edge) for edge in found.edges) and (edges is None or found.edges == edges)
    assert sum(found.counts["a"]) == len(lengths) and all(counted(found, "a", length) for length in lengths)


def test_edges_above_a_factor_of_ten_are_those_of_the_dataset():
    lengths = [3, 100, 101, 640]
    found = bins({"a": np.asarray(lengths, dtype=float)}, whole=True)
    of_record = Lengths.of([(length, 1) for length in lengths])
    assert found.logarithmic and found.edges == of_record.edges and found.counts["a"] == of_record.counts


def test_lengths_are_counted_for_a_dataset_only(tmp_path):
    record, path = results(tmp_path, (1, 1, "VALID"))[0]
    raw = raw_result(1, 1)
    path.write_text(json.dumps(raw | {"input_lens": [5, 5, 5, 5, 5, 5, 5, 70]}))
    (plain,) = distributions.distributions([(record, path)])
    assert set(plain.metrics) == set(formatting.METRICS)
    prompts = StagedPrompts(dataset="staged", name="mine", output_tokens=4)
    (found,) = distributions.distributions(
        [(record.model_copy(update={"load": record.load.model_copy(update={"prompts": prompts})}), path)]
    )
    inputs, outputs = found.metrics["input_tokens"], found.metrics["output_tokens"]
    assert (inputs.counts["plain"][0], inputs.counts["plain"][-1], sum(inputs.counts["plain"])) == (7, 1, 8)
    assert (outputs.edges, outputs.counts["plain"]) == ((4.0, 5.0), (8,))


def test_report_shows_lengths_and_share_of_the_prefix_cache():
    data = report_data_dataset.run()
    document = Document(page.render(data, bundle=""))
    drawings = {attributes.get("data-drawing") for _, attributes in document.tags}
    assert {"bins-input_tokens", "bins-output_tokens"} <= drawings
    rows = [row for row in document.cells("figures") if row[0] == "whole run"]
    assert rows and all(row[4].rstrip("?") == "37.5" for row in rows)
    assert {point["prefix_hit_share_median"] for point in document.block["points"]} == {report_data_dataset.SHARE}
    assert any("prompts.jsonl" in cell for row in document.cells("reproduce") for cell in row)
    other = Document(page.render(report_data.demo(), bundle=""))
    assert not {"bins-input_tokens", "bins-output_tokens"} & {attributes.get("data-drawing") for _, attributes in other.tags}
    assert "prefix caches" not in other.words
