"""Legal and illegal topologies: errors have the numbers and the legal values."""

import json
import re

import pytest

from builders.paths import FIXTURES
from servemark.errors import PlanRefused
from servemark.planning.legality import PARTITION, legality, not_on_cpu, stage_layers, stages
from servemark.records import Topology
from servemark.weights import builtin
from servemark.weights.architecture import Architecture

FIXTURES = FIXTURES / "planning"
GPT_OSS = Architecture.from_config(json.loads((FIXTURES / "gpt-oss-120b-config.json").read_text()))
DENSE = Architecture.from_config(builtin.CONFIGS["tiny-dense"])
MOE = Architecture.from_config(builtin.CONFIGS["tiny-moe"])


def shape(base="tiny-dense", **changes):
    return Architecture.from_config({**builtin.CONFIGS[base], **changes})


def topology(nodes=1, devices=8, tp=1, pp=1, dp=1, replicas=1, executor="mp"):
    return Topology(
        nodes=nodes,
        devices_per_node=devices,
        tensor_parallel=tp,
        pipeline_parallel=pp,
        data_parallel=dp,
        replicas=replicas,
        executor=executor,
    )


@pytest.mark.parametrize(
    ("architecture", "asked"),
    [
        (DENSE, topology(devices=1, executor="single")),
        (DENSE, topology(devices=2, tp=2)),
        (DENSE, topology(nodes=2, devices=1, pp=2, executor="ray")),
        (MOE, topology(devices=4, tp=2, dp=2)),
        (GPT_OSS, topology(devices=4, tp=4)),
        (GPT_OSS, topology(devices=4, replicas=4, executor="single")),
        (GPT_OSS, topology(nodes=2, devices=2, tp=2, pp=2, executor="ray")),
        (GPT_OSS, topology(devices=8, tp=8)),
    ],
)
def test_a_legal_topology_has_no_error(architecture, asked):
    assert legality(architecture, asked, 8) == ()


@pytest.mark.parametrize(
    ("architecture", "asked", "numbers"),
    [
        # topology, violated condition, legal values
        (DENSE, topology(tp=3, devices=3), [3, 4, 1, 2, 4]),
        (shape(num_attention_heads=12, num_key_value_heads=4), topology(tp=6, devices=6), [6, 4, 1, 2, 4]),
        (shape(intermediate_size=510), topology(tp=4, devices=4), [4, 510, 1, 2]),
        (shape("tiny-moe", moe_intermediate_size=96), topology(tp=2, dp=32, devices=64), [2, 32, 64, 96, 1]),
        (shape("tiny-moe", num_experts=2), topology(tp=4, devices=4), [4, 2, 1, 2]),
        (DENSE, topology(pp=3, devices=3), [3, 2, 1, 2]),
        (GPT_OSS, topology(devices=16, tp=16), [16, 1, 1, 1, 16, 1, 16, 8]),
    ],
)
def test_illegal_topology_is_refused_with_legal_values(architecture, asked, numbers):
    (error,) = legality(architecture, asked, 64 if asked.devices_per_node == 64 else 8)
    assert list(map(int, re.findall(r"\d+", error))) == numbers


def test_whole_experts_may_have_any_width():
    narrow = shape("tiny-moe", moe_intermediate_size=90)
    asked = topology(devices=4, dp=4)
    assert re.findall(r"\d+", legality(narrow, asked, 8)[0])[:4] == ["1", "4", "4", "90"]
    assert legality(narrow, asked, 8, spread=True) == ()


def test_refusal_of_too_few_devices_names_the_hiding_variable():
    (error,) = legality(DENSE, topology(tp=2, devices=2), 1, hiding="HIDING")
    assert "HIDING" in error and "hardware.json" in error


@pytest.mark.parametrize(
    ("architecture", "pp", "given", "split"),
    [
        (GPT_OSS, 2, None, (18, 18)),
        (GPT_OSS, 2, "", (18, 18)),
        (GPT_OSS, 2, "20,16", (20, 16)),
        (GPT_OSS, 3, "10, 16 ,10", (10, 16, 10)),
        (GPT_OSS, 5, None, (7, 7, 7, 8, 7)),
        (DENSE, 1, "7", (2,)),
        (DENSE, 3, "1,1,1", stage_layers(2, 3)),
    ],
)
def test_layers_of_stages_by_variable_or_by_vllm(architecture, pp, given, split):
    variables = {} if given is None else {PARTITION: given}
    assert stages(architecture, topology(pp=pp, devices=pp), variables) == split


@pytest.mark.parametrize("given", ["18", "18,17", "18,18,0", "36,0", "20;16", "a,b", "18.0,18.0", "-1,37", ","])
def test_wrong_partition_of_the_layers_is_refused(given):
    with pytest.raises(PlanRefused) as refused:
        stages(GPT_OSS, topology(pp=2, devices=2), {PARTITION: given})
    assert refused.value.reason == "bad_option"
    assert PARTITION in refused.value.do and "18,18" in refused.value.what


@pytest.mark.parametrize(
    ("pp", "options", "variables", "accelerator", "faults"),
    [
        (2, {"enforce-eager": True}, {}, "cpu", 1),
        (2, {"no-enforce-eager": False}, {}, "cpu", 1),
        (2, {}, {"VLLM_CPU_CI_ENV": "1"}, "cpu", 1),
        (2, {"enforce-eager": True}, {"VLLM_CPU_CI_ENV": "1"}, "cpu", 2),
        (2, {"enforce-eager": False}, {"VLLM_CPU_CI_ENV": "0"}, "cpu", 0),
        (2, {"no-enforce-eager": True}, {}, "cpu", 0),
        (2, {"enforce-eager": None}, {}, "cpu", 0),
        (1, {"enforce-eager": True}, {}, "cpu", 0),
        (2, {"enforce-eager": True}, {}, "cuda", 0),
    ],
)
def test_pipeline_stages_on_cpu_need_the_warm_up(pp, options, variables, accelerator, faults):
    assert len(not_on_cpu(DENSE, topology(pp=pp, devices=pp), options, variables, accelerator)) == faults


def test_data_parallel_experts_are_refused_on_cpu_only():
    (fault,) = not_on_cpu(MOE, topology(dp=2), {}, {}, "cpu")
    assert "data_parallel 2" in fault and "topology.replicas" in fault
    for architecture, asked, accelerator in (
        (MOE, topology(dp=2), "cuda"),
        (DENSE, topology(dp=2), "cpu"),
        (MOE, topology(), "cpu"),
    ):
        assert not_on_cpu(architecture, asked, {}, {}, accelerator) == ()


@pytest.mark.parametrize(
    ("asked", "accelerator", "faults"),
    [
        (topology(tp=2, pp=2, nodes=2, devices=2, executor="mp"), "cpu", 1),
        (topology(tp=2, pp=2, nodes=2, devices=2, executor="mp"), "cuda", 0),
        (topology(tp=2, pp=2, nodes=2, devices=2, executor="ray"), "cpu", 0),
        (topology(pp=2, nodes=2, devices=1, executor="mp"), "cpu", 0),
        (topology(tp=4, devices=4, executor="mp"), "cpu", 0),
        (topology(dp=4, nodes=2, devices=2, executor="mp"), "cpu", 0),
        (topology(tp=2, nodes=2, replicas=2, devices=2, executor="mp"), "cpu", 0),
    ],
)
def test_several_ranks_per_node_by_mp_over_nodes_are_refused_on_cpu(asked, accelerator, faults):
    assert len(not_on_cpu(DENSE, asked, {}, {}, accelerator)) == faults


@pytest.mark.parametrize("tp", range(1, 13))
def test_listed_legal_values_are_exactly_those_without_error(tp):
    architecture = shape(num_attention_heads=12, num_key_value_heads=4, intermediate_size=36)
    errors = legality(architecture, topology(tp=tp, devices=64), 64)
    assert (errors == ()) == (tp in (1, 2, 4, 12))


@pytest.mark.parametrize(
    ("layers", "stages", "split"),
    [(36, 2, (18, 18)), (36, 1, (36,)), (5, 2, (3, 2)), (10, 4, (2, 3, 3, 2)), (11, 4, (3, 3, 3, 2)), (2, 2, (1, 1))],
)
def test_layers_are_split_as_vllm_does(layers, stages, split):
    assert stage_layers(layers, stages) == split
