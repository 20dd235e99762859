"""Reading config.json: key names, windows, quantisation, counts and missing keys."""

import json

import pytest

from builders.paths import FIXTURES
from servemark.errors import WeightsRefused
from servemark.weights.architecture import Architecture

FIXTURES = FIXTURES / "planning"
GPT_OSS = json.loads((FIXTURES / "gpt-oss-120b-config.json").read_text())

LLAMA_8B = {
    "model_type": "llama",
    "torch_dtype": "bfloat16",
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
}
QWEN3_30B = {
    "model_type": "qwen3_moe",
    "torch_dtype": "bfloat16",
    "vocab_size": 151936,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "sliding_window": None,
    "use_sliding_window": False,
}


def read(config, **changes):
    return Architecture.from_config({**config, **changes})


def compressed(weights, inputs=None):
    """A compressed-tensors checkpoint with one group of layers."""
    return {
        "quant_method": "compressed-tensors",
        "config_groups": {"group_0": {"weights": weights, "input_activations": inputs}},
    }


@pytest.mark.parametrize(
    ("config", "published"),
    [(LLAMA_8B, 8.03e9), (QWEN3_30B, 30.53e9), (GPT_OSS, 116.83e9)],
    ids=["llama-3.1-8b", "qwen3-30b-a3b", "gpt-oss-120b"],
)
def test_parameter_count_agrees_with_the_published_count(config, published):
    assert read(config).parameters().total == pytest.approx(published, rel=0.001)


def test_shape_of_gpt_oss():
    shape = read(GPT_OSS)
    assert (shape.layers, shape.hidden, shape.heads, shape.kv_heads, shape.head_dim) == (36, 2880, 64, 8, 64)
    assert (shape.experts, shape.experts_per_token, shape.expert_layers, shape.expert_intermediate) == (
        128,
        4,
        36,
        2880,
    )
    assert (shape.quantisation, shape.expert_bits, shape.weight_bits, shape.dtype_bytes) == ("mxfp4", 4.25, 16, 2)
    assert shape.windows == (128, None) * 18
    assert (shape.max_positions, shape.tie_word_embeddings, shape.moe) == (131072, False, True)


def test_missing_head_dim_and_kv_heads_follow_from_the_heads():
    shape = read({key: value for key, value in LLAMA_8B.items() if key != "num_key_value_heads"})
    assert (shape.head_dim, shape.kv_heads) == (128, 32)


def test_text_config_of_a_nested_config_is_read():
    outer = {"model_type": "outer", "torch_dtype": "bfloat16", "tie_word_embeddings": True, "hidden_size": 1}
    inner = {key: value for key, value in LLAMA_8B.items() if key not in ("torch_dtype", "tie_word_embeddings")}
    shape = Architecture.from_config({**outer, "text_config": inner})
    assert (shape.hidden, shape.dtype_bytes, shape.model_type) == (4096, 2, "llama")
    assert shape.tie_word_embeddings
    assert shape.parameters().head == 0


@pytest.mark.parametrize("key", ["num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size", "intermediate_size"])
def test_model_with_a_missing_key_is_of_unknown_size(key):
    shape = Architecture.from_config({name: value for name, value in LLAMA_8B.items() if name != key})
    assert key in shape.unknown and shape.total is None
    with pytest.raises(WeightsRefused, match=key) as caught:
        shape.parameters()
    assert caught.value.reason == "architecture_unknown"


@pytest.mark.parametrize("value", [0, -1, "32", True])
def test_value_that_is_no_positive_number_is_refused(value):
    with pytest.raises(WeightsRefused, match="num_hidden_layers") as caught:
        read(LLAMA_8B, num_hidden_layers=value)
    assert caught.value.reason == "config_incomplete"


@pytest.mark.parametrize("key", ["num_key_value_heads", "head_dim"])
def test_default_stands_for_an_absent_key_or_null_only(key):
    without = {name: value for name, value in LLAMA_8B.items() if name != key}
    assert read(without) == read(LLAMA_8B, **{key: None})
    with pytest.raises(WeightsRefused, match=key) as caught:
        read(LLAMA_8B, **{key: 0})
    assert caught.value.reason == "config_incomplete"


@pytest.mark.parametrize(
    "changes",
    [
        {"kv_lora_rank": 512},
        {"torch_dtype": "float8_e4m3fn"},
        {"layer_types": ["linear_attention"] * 32},
        {"full_attention_interval": 4},
        {"hybrid_override_pattern": "M-M*"},
        {"attn_type_list": [0, 1] * 16},
        {"model_type": "nemotron_h", "hybrid_override_pattern": "M-M*"},
        {"model_type": "granitemoehybrid"},
        {"model_type": "deepseek_v3", "kv_lora_rank": 512, "qk_rope_head_dim": 64},
        {"num_hidden_layers": None},
    ],
    ids=str,
)
def test_unknown_attention_or_dtype_is_not_sized(changes):
    shape = read(LLAMA_8B, **changes)
    assert shape.unknown and shape.total is None and shape.windows == ()
    assert (shape.heads, shape.max_positions, shape.vocab) == (32, 131072, 128256)


@pytest.mark.parametrize("changes", [{"layer_types": ["full_attention"]}, {"layer_types": ["sliding_attention"] * 32}])
def test_layer_types_that_contradict_other_keys_are_refused(changes):
    with pytest.raises(WeightsRefused) as caught:
        read(LLAMA_8B, **changes)
    assert caught.value.reason == "config_incomplete"


@pytest.mark.parametrize(
    ("changes", "windows"),
    [
        ({}, (None, None, None, None)),
        ({"sliding_window": 64}, (64, 64, 64, 64)),
        ({"sliding_window": 0}, (None, None, None, None)),
        ({"sliding_window": 64, "use_sliding_window": False}, (None, None, None, None)),
        ({"sliding_window": 64, "sliding_window_pattern": 2}, (64, None, 64, None)),
        ({"sliding_window": 64, "layer_types": ["full_attention"] * 3 + ["sliding_attention"]}, (None, None, None, 64)),
    ],
)
def test_windows_of_layers(changes, windows):
    assert read(LLAMA_8B, num_hidden_layers=4, **changes).windows == windows


@pytest.mark.parametrize(
    ("settings", "weight_bits", "expert_bits"),
    [
        (None, 16, 16),
        ({"quant_method": "mxfp4"}, 16, 4.25),
        ({"quant_method": "fp8"}, 8, 8),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, 4 + 20 / 128, 4 + 20 / 128),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, 8, 8),
        ({"quant_method": "unheard-of"}, 16, 16),
        (compressed({"num_bits": 8, "type": "float"}), 8, 8),
        (compressed({"num_bits": 4, "type": "int", "group_size": 128, "symmetric": True}), 4 + 16 / 128, 4 + 16 / 128),
        (compressed({"num_bits": 4, "type": "int", "group_size": 32, "symmetric": False}), 4 + 20 / 32, 4 + 20 / 32),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, 8, 8),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, 4.5, 4.5),
    ],
)
def test_bits_of_quantised_weights(settings, weight_bits, expert_bits):
    shape = read(QWEN3_30B, quantization_config=settings)
    assert (shape.weight_bits, shape.expert_bits) == (weight_bits, expert_bits)
    assert shape.bits_known == (settings is None or settings["quant_method"] != "unheard-of")


@pytest.mark.parametrize(
    ("settings", "eight"),
    [
        ({"quant_method": "fp8"}, True),
        (compressed({"num_bits": 8, "type": "float"}, {"num_bits": 8, "type": "float"}), True),
        (compressed({"num_bits": 8, "type": "float"}), False),
        (compressed({"num_bits": 8, "type": "int"}, {"num_bits": 8, "type": "int"}), False),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, False),
        (None, False),
    ],
)
def test_float8_arithmetic_needs_float8_activations(settings, eight):
    assert read(QWEN3_30B, quantization_config=settings).float8_arithmetic is eight


def test_bits_of_several_groups_of_layers_are_unknown():
    settings = compressed({"num_bits": 8, "type": "float"})
    settings["config_groups"]["group_1"] = {"weights": {"num_bits": 4, "type": "int"}}
    shape = read(QWEN3_30B, quantization_config=settings)
    assert not shape.bits_known and shape.weight_bits == 16


def test_missing_keys_of_gemma_3_have_the_defaults_of_its_class():
    """google/gemma-3-4b-it: its text_config has these keys, without heads, KV heads and vocabulary."""
    config = {
        "model_type": "gemma3", "torch_dtype": "bfloat16",
        "text_config": {
            "model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34, "sliding_window": 1024,
        },
    }  # fmt: skip
    shape = Architecture.from_config(config)
    assert (shape.heads, shape.kv_heads, shape.head_dim, shape.vocab, shape.tie_word_embeddings) == (
        8,
        4,
        256,
        262208,
        True,
    )
    assert shape.windows[:7] == (1024, 1024, 1024, 1024, 1024, None, 1024)
    # The 27b states its own heads.
    config["text_config"] |= {"num_attention_heads": 32, "num_key_value_heads": 16, "head_dim": 128}
    shape = Architecture.from_config(config)
    assert (shape.heads, shape.kv_heads, shape.head_dim) == (32, 16, 128)


def test_llama_4_has_experts_in_every_second_layer():
    changes = {
        "interleave_moe_layer_step": 2,
        "intermediate_size": 8192,
        "intermediate_size_mlp": 16384,
        "moe_intermediate_size": None,
        "decoder_sparse_step": None,
    }
    shape = read(QWEN3_30B, **changes)
    assert (shape.expert_layers, shape.dense_intermediate, shape.expert_intermediate) == (24, 16384, 8192)


@pytest.mark.parametrize(
    ("dtype", "stored", "served"),
    [("float32", 4, 2), ("torch.bfloat16", 2, 2), ("float16", 2, 2), (None, 4, 2)],
)
def test_float32_checkpoint_is_served_in_half_precision(dtype, stored, served):
    shape = read(LLAMA_8B, torch_dtype=dtype)
    assert (shape.stored_bytes, shape.dtype_bytes) == (stored, served)


@pytest.mark.parametrize(
    ("changes", "expert_layers"),
    [({}, 48), ({"decoder_sparse_step": 2}, 24), ({"mlp_only_layers": [0, 1]}, 46), ({"first_k_dense_replace": 3}, 45)],
)
def test_number_of_layers_with_experts(changes, expert_layers):
    assert read(QWEN3_30B, **changes).expert_layers == expert_layers


def test_dense_layer_of_a_mixture_counts_with_its_own_width():
    all_experts, one_dense = read(QWEN3_30B), read(QWEN3_30B, mlp_only_layers=[0])
    difference = all_experts.parameters().total - one_dense.parameters().total
    assert difference == 128 * 3 * 2048 * 768 + 128 * 2048 - 3 * 2048 * 6144
