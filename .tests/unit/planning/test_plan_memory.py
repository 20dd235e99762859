"""The memory in a plan, by vLLM's options and variables."""

from __future__ import annotations

import pytest

from builders.planning import CLUSTER, GPUS, point
from servemark.errors import PlanRefused


def test_too_little_memory_is_refused(planned):
    with pytest.raises(PlanRefused, match="max-model-len"):
        planned(variables={"VLLM_CPU_KVCACHE_SPACE": "0.00001"})


@pytest.mark.parametrize(
    ("topology", "space", "fits"),
    [
        ({"replicas": 2}, "7", True),
        ({"replicas": 2}, "9", False),
        ({"tensor_parallel": 2}, "9", False),
        ({}, "9", True),
        ({"nodes": 2, "replicas": 2}, "9", True),
    ],
)
def test_ranks_of_one_node_share_its_memory_on_cpu(planned, topology, space, fits):
    changes = {"topology": topology, "variables": {"VLLM_CPU_KVCACHE_SPACE": space}, "cluster": CLUSTER}
    if fits:
        assert planned(**changes).estimate.kv_cache_gib == float(space)
    else:
        with pytest.raises(PlanRefused, match=r"2 ranks .* 16\.0 GiB"):
            planned(**changes)


def test_the_smallest_gpu_counts(planned):
    large = GPUS.model_copy(update={"gpus": GPUS.gpus[:1] * 2})
    assert planned(hardware=GPUS).estimate.kv_cache_gib < planned(hardware=large).estimate.kv_cache_gib


@pytest.mark.parametrize(
    ("options", "length"),
    [
        ({}, 4096),
        ({"max-model-len": None}, 4096),
        ({"max-model-len": "auto"}, 4096),
        ({"max-model-len": -1}, 4096),
        ({"max-model-len": 2048}, 2048),
        ({"max-model-len": "2048"}, 2048),
        ({"max-model-len": "2k"}, 2000),
        ({"max-model-len": "2K"}, 2048),
        ({"max-model-len": "1.5k"}, 1500),
    ],
)
def test_lengths_are_read_like_vllm(planned, options, length):
    assert planned(options=options).estimate.max_model_len == length


@pytest.mark.parametrize("auto", ["auto", -1])
def test_automatic_length_is_the_longest_that_fits(planned, auto):
    small = {"VLLM_CPU_KVCACHE_SPACE": "0.003"}
    with pytest.raises(PlanRefused, match=" 4096 tokens"):
        planned(options={}, variables=small)
    found = planned(options={"max-model-len": auto}, variables=small).estimate
    assert 512 <= found.max_model_len < 4096 and 1 <= found.max_concurrency < 1.2
    longer = found.max_model_len + 1
    with pytest.raises(PlanRefused, match=f" {longer} tokens"):
        planned(
            options={"max-model-len": auto},
            variables=small,
            points=[point(1, input_tokens=longer - 32, output_tokens=32)],
        )
    with pytest.raises(PlanRefused, match=f" {longer} tokens"):
        planned(
            options={"max-model-len": auto},
            variables=small,
            points=[point(1, input_tokens=8, output_tokens=32, client_options={"random-prefix-len": longer - 40})],
        )


@pytest.mark.parametrize(
    ("options", "variables", "gib"),
    [
        ({"kv-cache-memory-bytes": "2G"}, {}, 2.0),
        ({"kv-cache-memory-bytes": 2**29}, {}, 0.5),
        ({}, {"VLLM_CPU_KVCACHE_SPACE": "0.5"}, 0.5),
        ({"block-size": "32", "max-num-batched-tokens": "2K"}, {"VLLM_CPU_KVCACHE_SPACE": "1"}, 1.0),
    ],
)
def test_cache_of_fixed_size_has_that_size_in_the_plan(planned, options, variables, gib):
    found = planned(options={"max-model-len": 512, **options}, variables=variables)
    assert found.estimate.kv_cache_gib == pytest.approx(gib)


def test_an_8_bit_cache_holds_twice_the_tokens(planned):
    plain, small = planned(), planned(options={"max-model-len": 512, "kv-cache-dtype": "fp8_e5m2"})
    assert small.estimate.kv_bytes_per_token * 2 == plain.estimate.kv_bytes_per_token


@pytest.mark.parametrize(
    ("options", "variables", "named"),
    [
        ({"max-model-len": "lots"}, {}, "max-model-len"),
        ({"max-model-len": "1.5K"}, {}, "max-model-len"),
        ({"max-model-len": "1.5"}, {}, "max-model-len"),
        ({"max-model-len": True}, {}, "max-model-len"),
        ({"block-size": -16}, {}, "block-size"),
        ({"gpu-memory-utilization": "high"}, {}, "gpu-memory-utilization"),
        ({}, {"VLLM_CPU_KVCACHE_SPACE": "1 GiB"}, "VLLM_CPU_KVCACHE_SPACE"),
    ],
)
def test_text_in_place_of_a_number_is_refused_by_its_name(planned, options, variables, named):
    with pytest.raises(PlanRefused, match=named) as refused:
        planned(options=options, variables=variables)
    assert refused.value.reason == "bad_option"


def test_servers_that_exceed_the_memory_of_a_node_are_refused(planned):
    two = {"topology": {"replicas": 2}, "variables": {}}
    with pytest.raises(PlanRefused, match=r" 2 ranks") as refused:
        planned(**two)
    assert refused.value.reason == "does_not_fit" and "VLLM_CPU_KVCACHE_SPACE" in refused.value.do
    assert planned(**two, options={"max-model-len": 512, "gpu-memory-utilization": 0.3}).points
    assert planned(topology={"replicas": 2}, variables={"VLLM_CPU_KVCACHE_SPACE": "1"}).points
    assert planned(variables={}).points
