"""Plans of latent, hybrid and Mamba models, and of models that planning cannot size."""

from __future__ import annotations

import pytest
import yaml

from builders.deployed import HARDWARE
from builders.paths import FIXTURES
from builders.planning import CLUSTER, GPUS, point
from servemark.errors import PlanRefused, WeightsRefused
from servemark.planning import memory
from servemark.planning.advice_data import SENTENCES
from servemark.planning.legality import legality, stage_layers
from servemark.planning.options import GIB, Server
from servemark.records import Gpu, Plan, Topology
from servemark.weights import builtin
from servemark.weights.architecture import Architecture

SHAPES = {name: entry["config"] for name, entry in yaml.safe_load((FIXTURES / "planning" / "shapes.yaml").read_text()).items()}
UNKNOWN = {**builtin.CONFIGS["tiny-dense"], "model_type": "of-tomorrow", "attn_type_list": [1, 0]}
BARE = {"model_type": "of-tomorrow", "architectures": ["OfTomorrow"], "vocab_size": 1024}
EIGHT = GPUS.model_copy(update={"gpus": (Gpu(name="NVIDIA H200", memory_mib=143771),) * 8, "memory_gib": 2000.0})


def read(name, **changes):
    return Architecture.from_config(SHAPES[name] | changes)


def server(architecture, topology, weight_bytes=None, **settings):
    return Server(topology, stage_layers(architecture.layers, topology.pipeline_parallel), weight_bytes, "cuda", 140.0, **settings)


def tensor(size, **more):
    return Topology(devices_per_node=size, tensor_parallel=size, executor="mp", **more)


def pool(architecture, topology, length, **settings):
    return memory.kv_pool(architecture, server(architecture, topology, **settings), length)


def test_latent_cache_is_the_same_on_each_number_of_ranks():
    shape = read("DeepSeek-V3")
    one, eight = (pool(shape, tensor(size), 4096) for size in (1, 8))
    assert one == eight
    assert (one.token_bytes, one.block_bytes, one.request_blocks) == (61 * 1152, 61 * 1152 * 16, 256)
    half = pool(shape, Topology(devices_per_node=2, pipeline_parallel=2, executor="mp"), 4096)
    assert half.token_bytes == 31 * 1152


def test_weights_of_deepseek_v3_on_eight_gpus():
    """671 billion parameters of 8 bits, of which embeddings, head and routers have 16; the latent projections are whole on each rank."""
    fp8 = read("DeepSeek-V3", quantization_config={"quant_method": "fp8"})
    parts, copied = fp8.parameters(), 61 * 7168 * (1536 + 576)
    routers = 58 * 7168 * 256
    expected = (parts.dense - routers - copied + parts.experts) / 8 + copied + 2 * routers + 2 * (parts.embedding + parts.head) / 8
    assert memory.rank_weight_bytes(fp8, server(fp8, tensor(8))) == pytest.approx(expected)
    # The checkpoint (685 billion parameters) also has the layer for multi-token prediction, which vLLM does not load.
    loaded = memory.rank_weight_bytes(fp8, server(fp8, tensor(8), weight_bytes=684_500_000_000))
    assert loaded == pytest.approx(expected, rel=0.006)


def test_a_hybrid_has_large_blocks_that_hold_one_state():
    """Qwen3-Next: 12 layers of attention with 2,048 bytes a token, 36 with a state of 1,097,728 bytes; groups of 12 layers."""
    shape = read("Qwen3-Next-80B-A3B")
    state = 3 * 8192 * 2 + 32 * 128 * 128 * 2
    found = pool(shape, tensor(1), 8192)
    # 536 tokens are too few, and blocks have a multiple of 16 tokens.
    block_tokens = 544
    assert (block_tokens - 16) * 2048 < state <= block_tokens * 2048
    assert found.block_bytes == 12 * block_tokens * 2048
    # 16 blocks of attention, and two states of each of three groups with prefix caching.
    assert found.request_blocks == 16 + 3 * 2
    assert (found.token_bytes, found.state_bytes) == (12 * 2048, 36 * state)
    assert pool(shape, tensor(1), 8192, prefix_caching=False).request_blocks == 16 + 3
    assert pool(shape, tensor(1), 8192, state_element_bytes=4).block_bytes > found.block_bytes


@pytest.mark.parametrize(
    ("name", "groups", "layers", "page", "blocks"),
    [("Qwen3-Next-80B-A3B", 4, 12, 1_114_112, 22), ("Nemotron-H-8B", 7, 4, 4_259_840, 8 + 6 * 3)],
)
def test_groups_and_blocks_of_a_hybrid_equal_those_of_vllm(name, groups, layers, page, blocks):
    """The numbers are what vLLM 0.32.0's functions gave for 8,192 tokens.

    Mamba 2 keeps one more state, as a real server of a small Granite logged (327.6 requests of 512 tokens in 1 GiB).
    """
    shape = read(name)
    kinds = [memory.STATE if layer in shape.kinds.stateful else None for layer in range(shape.layers)]
    kept = [kind for layer, kind in enumerate(kinds) if kind or layer not in shape.kinds.attention_free]
    assert [len(group) for group in memory.layer_groups(kept)] == [layers] * groups
    found = pool(shape, tensor(1), 8192)
    assert (found.block_bytes, found.request_blocks) == (layers * page, blocks)


def test_hybrid_cache_grows_with_attention_layers_only():
    short, long = (pool(read("Nemotron-H-8B"), tensor(1), length).request_blocks for length in (8192, 65536))
    assert long < 8 * short
    assert memory.estimate(read("Nemotron-H-8B"), server(read("Nemotron-H-8B"), tensor(1)), 8192).state_bytes_per_request == 24 * (
        3 * (8192 + 2048) * 2 + 128 * 64 * 128 * 4
    )


def test_cache_of_a_model_without_attention_does_not_depend_on_length():
    shape = read("Mamba-2.8B")
    state = 3 * 5120 * 2 + 5120 * 16 * 2
    short, long = (pool(shape, tensor(1), length) for length in (512, 1_000_000))
    assert short == long
    assert (short.block_bytes, short.request_blocks, short.token_bytes, short.state_bytes) == (64 * state, 1, 0, 64 * state)
    found = memory.estimate(shape, server(shape, tensor(1), cache_bytes=64 * state * 10), 4096)
    assert (found.max_concurrency, found.kv_cache_tokens, found.kv_bytes_per_token) == (10, 40960, 0)


def test_window_layers_are_bounded_by_the_window():
    config = SHAPES["Qwen2-57B-A14B"] | {"sliding_window": 1024, "layer_types": ["full_attention", "sliding_attention"] * 14}
    shape = Architecture.from_config(config)
    found = [pool(shape, tensor(1), length, batched=512).request_blocks for length in (4096, 65536)]
    assert found[1] - found[0] == (65536 - 4096) // 16


@pytest.mark.parametrize(
    ("name", "legal"),
    [
        ("DeepSeek-V3", {1, 2, 4, 8, 16, 32, 64, 128}),
        # 71 attention heads.
        ("Falcon-7B", {1, 71}),
        ("OPT-125m", {1, 2, 3, 4, 6, 12}),
        # 2 KV heads, 16 heads, 512 wide experts.
        ("Qwen3-Next-80B-A3B", {1, 2, 4, 8, 16}),
        # 8 groups of Mamba.
        ("Nemotron-H-8B", {1, 2, 4, 8}),
        # One group of Mamba; 12 heads, 4 KV heads, 48 heads of Mamba, experts of width 512.
        ("Granite-4.0-H-Tiny", {1, 2, 4}),
        # Channels of Mamba.
        ("Mamba-2.8B", {size for size in range(1, 129) if 5120 % size == 0}),
    ],
)
def test_legal_tensor_parallel_sizes(name, legal):
    shape = read(name)
    assert {size for size in range(1, 129) if not legality(shape, tensor(size), 128)} == legal


@pytest.fixture
def unknown(planned, tiny):
    def run(config=UNKNOWN, **changes) -> Plan:
        return planned(model=tiny.model_copy(update={"config": config} | changes.pop("manifest", {})), **changes)

    return run


@pytest.mark.parametrize("config", [UNKNOWN, BARE], ids=["unknown attention", "few keys"])
@pytest.mark.parametrize("hardware", [HARDWARE, GPUS], ids=["cpu", "cuda"])
def test_unknown_model_is_planned_without_an_estimate(unknown, tiny, planned, config, hardware):
    changes = {} if hardware is HARDWARE else {"variables": {}}
    found = unknown(config, hardware=hardware, **changes)
    estimate = found.estimate
    assert (estimate.kv_bytes_per_token, estimate.kv_cache_gib, estimate.kv_cache_tokens, estimate.max_concurrency) == (None,) * 4
    assert estimate.weights_gib == pytest.approx(tiny.weight_bytes / GIB)
    assert estimate.not_estimated and SENTENCES["cache_not_estimated"].format(why=estimate.not_estimated) in found.warnings
    assert "KV cache not estimated: unknown attention" in found.warnings[0] or config is BARE
    # The estimate is no part of the ledger key.
    assert [one.key for one in found.points] == [one.key for one in planned(hardware=hardware, **changes).points]
    assert Plan.model_validate_json(found.model_dump_json()) == found


def test_unknown_model_with_random_weights_has_no_estimate_at_all(unknown):
    found = unknown(manifest={"load_format": "dummy", "weight_bytes": None, "parameters": None})
    assert found.estimate.weights_gib is None and found.points


def test_unknown_model_has_an_equal_share_of_the_checkpoint_on_each_rank(unknown, tiny):
    found = unknown(topology={"tensor_parallel": 2, "pipeline_parallel": 2}, hardware=EIGHT, variables={})
    assert found.estimate.weights_gib == pytest.approx(tiny.weight_bytes / 4 / GIB)


def test_automatic_length_of_an_unknown_model_is_its_own(unknown):
    assert unknown(options={"max-model-len": "auto"}).estimate.max_model_len == 4096


@pytest.mark.parametrize(
    ("topology", "reason"),
    [({"tensor_parallel": 3}, "illegal_topology"), ({"pipeline_parallel": 3}, "illegal_topology"), ({"tensor_parallel": 2}, None)],
)
def test_unknown_model_is_refused_by_the_rules_that_all_models_have(unknown, topology, reason):
    """4 attention heads, 2 layers."""
    changes = {"topology": topology, "hardware": EIGHT, "variables": {}}
    if reason is None:
        assert unknown(**changes).points
        return
    with pytest.raises(PlanRefused) as refused:
        unknown(**changes)
    assert refused.value.reason == reason


def test_model_without_stated_layers_takes_any_pipeline(unknown):
    changes = {"hardware": EIGHT, "variables": {"VLLM_PP_LAYER_PARTITION": "3,5"}}
    assert unknown(BARE, topology={"pipeline_parallel": 2}, **changes).variables["VLLM_PP_LAYER_PARTITION"] == "3,5"


def test_load_beyond_max_model_len_is_refused_for_an_unknown_model(unknown):
    with pytest.raises(PlanRefused, match="max-model-len"):
        unknown(options={"max-model-len": 64}, points=[point(1)], cluster=CLUSTER)


def test_broken_config_is_still_refused(unknown):
    with pytest.raises(WeightsRefused) as refused:
        unknown({**UNKNOWN, "num_hidden_layers": 10**6})
    assert refused.value.reason == "config_broken"
