"""The roofline bound: a hand calculation, and the direction of each input's effect."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import yaml

from builders import report_data, report_data_cluster
from builders.paths import FIXTURES
from servemark import records
from servemark.errors import WeightsRefused
from servemark.planning import devices
from servemark.planning.roofline import Load, bound
from servemark.records import Topology
from servemark.report import comparison, views
from servemark.report.table import aggregate, tidy
from servemark.weights.architecture import Architecture

CONFIG = json.loads((FIXTURES / "planning" / "gpt-oss-120b-config.json").read_text())
GPT_OSS = Architecture.from_config(CONFIG)
DENSE = {
    "model_type": "llama", "torch_dtype": "bfloat16", "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
}  # fmt: skip
H200 = devices.find(records.Gpu(name="NVIDIA H200", memory_mib=143_771))


def of(architecture=GPT_OSS, topology=None, device=H200, concurrency=512, lengths=(1024, 1024), **more):
    found = bound(architecture, topology or Topology(), device, Load(concurrency, *lengths, **more))
    return found.output_tokens_per_s, found.limit


@pytest.mark.parametrize(
    ("architecture", "concurrency", "expected"),
    [
        # 64.0 GB of weights and 512 caches of 61.4 MB at 1,536 tokens in 19.88 ms.
        (GPT_OSS, 512, 25_750),
        (GPT_OSS, 128, 8_552),
        # 15.0 GB of weights and 256 caches of 131,072 bytes a token at 1,536 tokens in 13.9 ms.
        (Architecture.from_config(DENSE), 256, 18_450),
    ],
)
def test_bound_equals_a_hand_calculation(architecture, concurrency, expected):
    value, limit = of(architecture, concurrency=concurrency)
    assert value == pytest.approx(expected, rel=0.01) and limit == "memory"


def test_long_prompts_and_short_outputs_are_bound_by_arithmetic():
    value, limit = of(lengths=(8192, 16))
    assert limit == "arithmetic"
    # 2 x 4.6e9 operations for each of 512 prompt tokens a made one, and attention.
    assert value == pytest.approx(989.4e12 / (512 * 2 * 4.6e9), rel=0.15)


def test_each_batch_in_a_pipeline_reads_its_own_experts():
    """Eight requests in two stages: two batches of four, each of which reads as the eight's half would on one device."""
    two = Topology(devices_per_node=2, pipeline_parallel=2, executor="mp")
    assert of(topology=two, concurrency=8)[0] == pytest.approx(2 * of(concurrency=4)[0], rel=1e-9)


def test_bound_of_replicas_adds_up():
    one, _ = of(concurrency=128)
    four, _ = of(concurrency=512, topology=Topology(devices_per_node=4, replicas=4))
    assert four == pytest.approx(4 * one)


def test_tensor_parallel_reads_weights_once_and_pipeline_stages_take_turns():
    one, tp4, pp4 = (
        of(topology=Topology(devices_per_node=4, **shape))[0] for shape in ({}, {"tensor_parallel": 4}, {"pipeline_parallel": 4})
    )
    assert tp4 == pytest.approx(4 * one)
    assert one < pp4 < tp4


def test_data_parallel_engines_share_experts_only():
    tp, dp = (of(topology=Topology(devices_per_node=4, **shape))[0] for shape in ({"tensor_parallel": 4}, {"data_parallel": 4}))
    assert 0.8 * tp < dp < tp


def test_smaller_cache_and_8_bit_weights_raise_the_bound():
    plain = Architecture.from_config(DENSE)
    eight = Architecture.from_config(DENSE | {"quantization_config": {"quant_method": "fp8"}})
    assert of(plain, kv_element_bytes=1)[0] > of(plain)[0]
    assert of(eight, lengths=(8192, 16))[0] == pytest.approx(2 * of(plain, lengths=(8192, 16))[0], rel=0.01)
    ampere = devices.find(records.Gpu(name="NVIDIA A100-SXM4-80GB", memory_mib=81_920))
    assert of(eight, device=ampere, lengths=(8192, 16))[0] == pytest.approx(of(plain, device=ampere, lengths=(8192, 16))[0])


SHAPES = {name: entry["config"] for name, entry in yaml.safe_load((FIXTURES / "planning" / "shapes.yaml").read_text()).items()}
FP8 = {"quantization_config": {"quant_method": "fp8"}}


def test_each_rank_reads_a_whole_latent_vector():
    """DeepSeek-V3 in 8 bits, 128 requests: 671 GB less the embedding, and 128 caches of 70,272 bytes a token on each of 8 ranks."""
    shape = Architecture.from_config(SHAPES["DeepSeek-V3"] | FP8)
    parts, touched = shape.parameters(), 1 - (1 - 8 / 256) ** 256
    weights = parts.dense + parts.experts * touched + 2 * parts.head
    eight = Topology(devices_per_node=8, tensor_parallel=8)
    value, limit = of(shape, eight, concurrency=128)
    assert limit == "memory"
    assert value == pytest.approx(128 / ((weights + 8 * 128 * 70_272 * 1536) / 4.8e12 / 8))
    assert of(shape, Topology(devices_per_node=8, data_parallel=8), concurrency=128)[0] < value


def test_a_hybrid_reads_and_writes_states_and_caches_of_attention_layers_only():
    shape = Architecture.from_config(SHAPES["Granite-4.0-H-Micro"])
    state = 3 * (64 * 64 + 256) * 2 + 64 * 64 * 128 * 2
    parts = shape.parameters()
    weights = 2 * (parts.dense + parts.embedding)
    value, limit = of(shape, concurrency=64)
    assert limit == "memory"
    assert value == pytest.approx(64 / ((weights + 64 * (8192 * 1536 + 2 * 36 * state)) / 4.8e12))


def test_bound_of_a_model_without_attention_does_not_depend_on_length():
    shape = Architecture.from_config(SHAPES["Mamba-2.8B"])
    short, long = (of(shape, concurrency=8, lengths=(size, size))[0] for size in (128, 4096))
    assert short == pytest.approx(long)


def test_four_bit_arithmetic_needs_a_device_with_its_units():
    four = Architecture.from_config(DENSE | {"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}})
    plain = Architecture.from_config(DENSE)
    hopper, blackwell = H200, devices.find(records.Gpu(name="NVIDIA B200", memory_mib=183_359))
    ratio = [of(four, device=one, lengths=(8192, 16))[0] / of(plain, device=one, lengths=(8192, 16))[0] for one in (hopper, blackwell)]
    assert ratio == [pytest.approx(2, rel=0.01), pytest.approx(4, rel=0.01)]


@pytest.mark.parametrize(
    "changes",
    [{"attn_type_list": [1]}, {"model_type": "deepseek_v32", "index_topk": 2048, "index_n_heads": 64, "index_head_dim": 128}],
    ids=["unknown attention", "sparse attention"],
)
def test_unknown_and_sparse_attention_give_no_bound(changes):
    base = DENSE if "attn_type_list" in changes else SHAPES["DeepSeek-V3"]
    with pytest.raises(WeightsRefused) as refused:
        of(Architecture.from_config(base | changes))
    assert refused.value.reason == "architecture_unknown"


def test_unknown_bits_of_a_weight_give_no_bound():
    odd = Architecture.from_config(DENSE | {"quantization_config": {"quant_method": "unheard-of"}})
    with pytest.raises(WeightsRefused, match="unheard-of") as refused:
        of(odd)
    assert refused.value.reason == "architecture_unknown"


def shares(data):
    return comparison.shares(views.medians(aggregate(tidy(data.measurements))), data)


def test_each_accepted_load_on_a_known_gpu_has_its_share():
    data = report_data_cluster.two_nodes()
    found, missing = shares(data)
    assert missing == [] and len(found) == 9
    row = next(row for row in found if (row.point["deployment"], row.point["concurrency"]) == ("plain", 512))
    expected = bound(GPT_OSS, Topology(), H200, Load(512, 64, 32))
    assert row.bound == expected and row.part == pytest.approx(9080 * 1.015 / expected.output_tokens_per_s)


@pytest.mark.parametrize(
    ("caching", "prompt"),
    [({}, 64), ({"enable-prefix-caching": False}, 576), ({"no-enable-prefix-caching": True}, 576)],
)
def test_prefix_counts_without_prefix_caching(caching, prompt):
    data = report_data_cluster.two_nodes()
    plain = data.plans["plain"]
    options = {"client_options": {"random-prefix-len": 512}}
    points = tuple(p.model_copy(update={"load": p.load.model_copy(update=options)}) for p in plain.points)
    plan = plain.model_copy(update={"points": points, "options": plain.options | caching})
    found, _ = shares(replace(data, plans=data.plans | {"plain": plan}))
    row = next(row for row in found if (row.point["deployment"], row.point["concurrency"]) == ("plain", 512))
    assert row.bound == bound(GPT_OSS, Topology(), H200, Load(512, prompt, 32))


def gpus(*names):
    return tuple(records.Gpu(name=name, memory_mib=143_771) for name in names)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"accelerator": "cpu"}, "CPU"),
        ({"gpus": gpus("NVIDIA H200", "NVIDIA A100-SXM4-80GB")}, "NVIDIA A100-SXM4-80GB, NVIDIA H200"),
        ({"gpus": gpus("NVIDIA Tomorrow")}, "NVIDIA Tomorrow"),
        ({"gpus": ()}, "none"),
    ],
)
def test_report_names_an_unknown_gpu(changes, said):
    data = report_data_cluster.two_nodes()
    found, (why,) = shares(replace(data, hardware=data.hardware.model_copy(update=changes)))
    assert found == [] and said in why


def test_report_names_loads_without_a_bound():
    data = report_data_cluster.two_nodes()
    rate = report_data.measurement("plain", None, workload="burst", request_rate=2.0)
    found, missing = shares(replace(data, measurements=[*data.measurements, rate]))
    assert len(found) == 9 and len(missing) == 1 and "burst" in missing[0]
    none, why = shares(replace(data, manifests={}))
    assert none == [] and "manifest" in why[0]
    odd = {"tiny": report_data.manifest().model_copy(update={"config": {"kv_lora_rank": 512}})}
    assert "num_hidden_layers" in shares(replace(data, manifests=odd))[1][0]


def test_invalid_points_have_no_share():
    data = report_data_cluster.two_nodes()
    invalid = [report_data.invalid(item.deployment, concurrency=item.load.concurrency) for item in data.measurements]
    assert shares(replace(data, measurements=invalid)) == ([], [])
