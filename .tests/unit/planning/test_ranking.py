"""The ranking of topologies: what is listed, in which order, and lower bounds of latencies."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import yaml

from builders.paths import FIXTURES
from servemark.errors import ConfigError
from servemark.planning import assumed, devices, ranking
from servemark.planning.roofline import Load, bound, least_latencies
from servemark.planning.topologies import legal
from servemark.records import Topology
from servemark.weights.architecture import Architecture

LLAMA = Architecture.from_config(json.loads((FIXTURES / "planning/Llama-3.3-70B-Instruct/config.json").read_text()))
GPT_OSS = Architecture.from_config(json.loads((FIXTURES / "planning/gpt-oss-120b-config.json").read_text()))
SHAPES = yaml.safe_load((FIXTURES / "planning/shapes.yaml").read_text())
H200 = devices.by_short_name()["h200"]


def question(architecture=LLAMA, gpu="h200", gpus=4, concurrency=64, **more) -> ranking.Question:
    found, device = assumed.gpu(gpu)
    return ranking.Question(
        architecture=architecture,
        weight_bytes=None,
        hardware=assumed.node(found, gpus),
        check=assumed.environment(),
        points=(assumed.load(concurrency, 1024, 1024),),
        options={"max-model-len": 8192},
        device=device,
        **more,
    )


def sizes(topology):
    return topology.nodes, topology.tensor_parallel, topology.pipeline_parallel, topology.data_parallel, topology.replicas


def test_one_node_lists_every_legal_size():
    found = {sizes(one) for one in legal(LLAMA, 4, 1, spread=False)}
    assert found == {
        *((1, 1, 1, 1, count) for count in (1, 2, 3, 4)),
        *((1, 1, stages, 1, count) for stages, count in ((2, 1), (2, 2), (3, 1), (4, 1))),
        *((1, 2, 1, 1, count) for count in (1, 2)),
        (1, 2, 2, 1, 1),
        (1, 4, 1, 1, 1),
    }


def test_two_nodes_have_full_nodes_of_replicas_or_pipeline_stages_over_nodes():
    found = {sizes(one) for one in legal(LLAMA, 4, 2, spread=False)}
    assert {(2, 4, 1, 1, 2), (2, 4, 2, 1, 1), (2, 1, 1, 1, 8), (2, 2, 4, 1, 1)} <= found
    assert all(one[0] == 2 and one[1] <= 4 for one in found)


def test_experts_leave_a_node_only_as_whole_experts():
    split, whole = ({sizes(one) for one in legal(GPT_OSS, 4, 2, spread=spread)} for spread in (False, True))
    assert (2, 1, 1, 8, 1) in whole - split
    assert (2, 1, 1, 4, 2) in split & whole


@pytest.mark.parametrize("model", SHAPES)
def test_every_listed_topology_is_a_legal_configuration(model):
    architecture = Architecture.from_config(SHAPES[model]["config"])
    for nodes in (1, 2, 3):
        for one in legal(architecture, 8, nodes, spread=False):
            assert one.devices_per_node <= 8
            assert architecture.heads % one.tensor_parallel == 0 and one.tensor_parallel <= 8


def test_smallest_topology_that_holds_the_load_is_first_and_tensor_parallel_comes_before_pipeline():
    few, many = (ranking.rank(question(concurrency=count), 1) for count in (1, 200))
    assert sizes(few.candidates[0].topology) == (1, 2, 1, 1, 1)
    assert sizes(many.candidates[0].topology) == (1, 4, 1, 1, 1) and many.candidates[0].holds_load
    assert (
        few.fits
        and many.fits
        and [one.holds_load for one in many.candidates] == sorted((one.holds_load for one in many.candidates), reverse=True)
    )


def test_without_room_for_the_load_the_one_that_holds_most_is_first():
    found = ranking.rank(question(concurrency=5000), 1)
    held = [one.held for one in found.candidates]
    assert not found.fits and held == sorted(held, reverse=True) and held[0] < 5000
    assert ranking.fewest_nodes(question(concurrency=5000), load=False).nodes == 1
    assert ranking.fewest_nodes(question(concurrency=5000)).nodes > 1


def test_replicas_come_before_pipeline_stages_over_nodes():
    found = ranking.fewest_nodes(question(concurrency=1000))
    assert found.nodes == 2 and sizes(found.candidates[0].topology) == (2, 4, 1, 1, 2)


def test_estimates_are_those_of_the_planner():
    """The same numbers as plan_deployment gives the same topology: one calculation."""
    first = ranking.rank(question(), 1).candidates[0]
    assert first.estimate.weights_gib == pytest.approx(2 * LLAMA.total / first.topology.world_size / 2**30, rel=0.01)
    assert first.bound == bound(LLAMA, first.topology.record(), devices.find(H200), Load(64, 1024, 1024))


def test_targets_leave_out_what_cannot_meet_them():
    every = ranking.rank(question(), 1)
    limit = sorted(one.latencies.tpot_ms for one in every.candidates)[1]
    found = ranking.rank(replace(question(), targets={"tpot_ms": limit}), 1)
    assert {one.latencies.tpot_ms <= limit for one in found.candidates} == {True}
    assert {one.latencies.tpot_ms > limit for one in found.missed} == {True}
    assert len(found.candidates) + len(found.missed) == len(every.candidates)


def test_latencies_by_hand():
    """141.1 GB less the embedding: 139.0 GB of weights, of 4 x 4.8 TB/s; a prompt of 8,192 tokens of 2 x 68.4e9 operations."""
    topology = Topology(tensor_parallel=4, devices_per_node=4, executor="mp")
    found = least_latencies(LLAMA, topology, devices.find(H200), Load(1, 8192, 2))
    parts = LLAMA.parameters()
    cache = 8193 * 2 * 8 * 128 * 2 * 80
    assert found.tpot_ms == pytest.approx(1000 * ((parts.dense + parts.head) * 2 + cache) / 4 / 4.8e12)
    attention = 4 * 64 * 128 * 4096 * 80
    assert found.ttft_ms == pytest.approx(1000 * (8192 * (2 * parts.dense + attention) + 2 * (parts.dense + parts.head)) / 4 / 989.4e12)
    assert found.e2el_ms == pytest.approx(found.ttft_ms + found.tpot_ms)


def test_bound_is_never_above_the_rate_of_the_least_latency():
    """A closed load: no request ends sooner than its least latency."""
    for one in ranking.rank(question(), 1).candidates:
        assert one.bound.output_tokens_per_s <= 64 * 1000 / one.latencies.tpot_ms * 1.0001


@pytest.mark.parametrize(("text", "name", "peaks"), [
    ("h200", "NVIDIA H200", True), ("H200", "NVIDIA H200", True), ("A100 80GB", "NVIDIA A100-SXM4-80GB", True),
    ("24GiB", "GPU of 24GiB", False), ("80GB,2TB/s,312TFLOP/s", "GPU of 80GB", True),
])  # fmt: skip
def test_gpu_by_name_or_numbers(text, name, peaks):
    gpu, device = assumed.gpu(text)
    assert gpu.name == name and bool(device) is peaks


def test_memory_in_gb_is_decimal():
    assert [assumed.gpu(text)[0].memory_mib for text in ("80GiB", "80GB")] == [81920, 76293]


@pytest.mark.parametrize("text", ["", "h201", "24", "24GiB,1TB/s", "24GiB,24GiB", "1TB/s,24TFLOP/s"])
def test_other_gpus_are_refused(text):
    with pytest.raises(ConfigError) as refused:
        assumed.gpu(text)
    assert refused.value.reason == "unknown_gpu" and "h200" in refused.value.do


@pytest.mark.parametrize("text", [
    "0GiB", "0.5GiB", "200000GB", "24GiB,0TB/s,1TFLOP/s", "24GiB,1TB/s,0TFLOP/s", "24GiB,2000TB/s,1TFLOP/s", f"{'9' * 400}GiB",
])  # fmt: skip
def test_gpus_with_impossible_numbers_are_refused(text):
    with pytest.raises(ConfigError) as refused:
        assumed.gpu(text)
    assert refused.value.reason == "bad_number" and "from" in refused.value.do
