"""Parameter counts, KV caches and states of published models, by their config.json."""

from __future__ import annotations

import pytest
import yaml

from builders.paths import FIXTURES
from servemark.weights.architecture import Architecture

SHAPES = yaml.safe_load((FIXTURES / "planning" / "shapes.yaml").read_text())
FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
V3 = SHAPES["DeepSeek-V3"]["config"]
V32 = V3 | {"model_type": "deepseek_v32", "index_topk": 2048, "index_n_heads": 64, "index_head_dim": 128}


def read(name, **changes):
    return Architecture.from_config(SHAPES[name]["config"] | changes)


@pytest.mark.parametrize("name", SHAPES)
def test_parameter_count_agrees_with_the_published_one(name):
    expected = SHAPES[name]
    assert read(name).total == pytest.approx(expected["published_billions"] * 1e9, rel=expected["tolerance"])


@pytest.mark.parametrize("name", [name for name in SHAPES if SHAPES[name]["counted"]])
def test_parameter_count_lacks_only_norms_and_biases(name):
    counted = SHAPES[name]["counted"]
    assert 0 <= counted - read(name).total < 0.001 * counted


@pytest.mark.parametrize("name", SHAPES)
def test_kv_cache_of_a_token_is_that_of_attention_layers_alone(name):
    shape, expected = read(name, torch_dtype="bfloat16"), SHAPES[name]
    assert shape.unknown is None
    assert shape.attention_layers == expected["attention_layers"]
    assert len(shape.kinds.stateful) == expected["state_layers"]
    assert shape.attention_layers * shape.token_bytes(1) == expected["kv_bytes"]


def test_latent_vector_is_whole_on_each_tensor_parallel_rank():
    shape = read("DeepSeek-V3")
    assert [shape.token_bytes(tp) for tp in (1, 8, 128)] == [2 * (512 + 64)] * 3
    assert shape.token_bytes(8, 1) == 512 + 64
    assert read("Qwen2-57B-A14B").token_bytes(4) * 4 == read("Qwen2-57B-A14B").token_bytes(1)


def test_layers_of_another_width_than_attention_count_with_their_own_width():
    """The dense layers of DeepSeek-V3 and the shared experts are as wide as config.json states."""
    shape, dense = read("DeepSeek-V3"), read("DeepSeek-V3", first_k_dense_replace=4)
    assert shape.expert_layers == 58
    assert shape.total - dense.total == 257 * 3 * 7168 * 2048 + 256 * 7168 - 3 * 7168 * 18432
    assert shape.total - read("DeepSeek-V3", n_shared_experts=0).total == 58 * 3 * 7168 * 2048
    assert shape.parameters().experts == 58 * 256 * 3 * 7168 * 2048


def test_query_of_a_model_without_q_lora_rank_is_projected_at_once():
    lora, plain = read("DeepSeek-V3").latent, read("DeepSeek-V3", q_lora_rank=None).latent
    query = 128 * (128 + 64)
    assert plain.parameters(7168, 128) - lora.parameters(7168, 128) == 7168 * query - 7168 * 1536 - 1536 * query
    assert (plain.copied(7168), lora.copied(7168)) == (7168 * 576, 7168 * (576 + 1536))


def test_sparse_attention_also_caches_keys_of_its_indexer():
    shape = Architecture.from_config(V32)
    assert shape.token_bytes(8) == 2 * 576 + 132
    assert shape.token_bytes(8, 1) == 656 + 132
    assert shape.total - read("DeepSeek-V3").total == 61 * (1536 * 64 * 128 + 7168 * (128 + 64))


def test_latent_attention_of_another_type_is_unknown():
    assert "minicpm3" in read("DeepSeek-V3", model_type="minicpm3").unknown


@pytest.mark.parametrize(
    ("name", "tp", "expected"),
    [
        # A convolution of 4 tokens keeps 3 of 8,192 channels; 32 heads of 128 x 128; both in 16 bits.
        ("Qwen3-Next-80B-A3B", 1, 3 * 8192 * 2 + 32 * 128 * 128 * 2),
        ("Qwen3-Next-80B-A3B", 4, (3 * 8192 * 2 + 32 * 128 * 128 * 2) // 4),
        # 128 heads of 64 x 128 in 32 bits; 8,192 channels and 8 groups of 2 x 128.
        ("Nemotron-H-8B", 1, 3 * (8192 + 2048) * 2 + 128 * 64 * 128 * 4),
        ("Nemotron-H-8B", 4, (3 * (8192 + 2048) * 2 + 128 * 64 * 128 * 4) // 4),
        # One group, which each rank holds whole.
        ("Granite-4.0-H-Small", 4, 3 * (8192 // 4 + 256) * 2 + 128 * 64 * 128 * 2 // 4),
        ("Jamba-v0.1", 2, (3 * 8192 * 2 + 8192 * 16 * 2) // 2),
        ("Mamba-2.8B", 1, 3 * 5120 * 2 + 5120 * 16 * 2),
    ],
)
def test_state_of_a_sequence(name, tp, expected):
    shape = read(name)
    assert shape.state.rank_bytes(tp, shape.dtype_bytes) == expected


def test_option_and_config_choose_the_elements_of_a_state():
    shape = read("Qwen3-Next-80B-A3B", mamba_ssm_dtype="float32")
    recurrent = 32 * 128 * 128
    assert shape.state.rank_bytes(1, 2) == 3 * 8192 * 2 + recurrent * 4
    assert shape.state.rank_bytes(1, 2, 2) == 3 * 8192 * 2 + recurrent * 2
    assert read("Nemotron-H-8B", mamba_ssm_cache_dtype="bfloat16").state.element_bytes == 2


def test_layer_types_and_interval_of_qwen_name_the_same_layers():
    kinds = (["linear_attention"] * 3 + ["full_attention"]) * 12
    plain, listed = read("Qwen3-Next-80B-A3B"), read("Qwen3-Next-80B-A3B", layer_types=kinds, full_attention_interval=None)
    assert plain == listed
    assert sorted(set(range(48)) - plain.kinds.attention_free) == list(range(3, 48, 4))


def test_words_and_letters_of_nemotron_name_the_same_layers():
    words = {"M": "mamba", "*": "attention", "-": "mlp"}
    kinds = [words[letter] for letter in SHAPES["Nemotron-H-8B"]["config"]["hybrid_override_pattern"]]
    assert read("Nemotron-H-8B", hybrid_override_pattern=None, layers_block_type=kinds) == read("Nemotron-H-8B")


def test_chunked_attention_keeps_the_whole_cache():
    text = SHAPES["Llama-4-Scout"]["config"]["text_config"]
    kinds = ["chunked_attention"] * 3 + ["full_attention"]
    assert Architecture.from_config({"text_config": text | {"layer_types": kinds * 12}}).windows == (None,) * 48


@pytest.mark.parametrize(
    ("changes", "kv_heads"),
    [({}, 1), ({"multi_query": False}, 71), ({"new_decoder_architecture": True, "num_kv_heads": 8}, 8)],
)
def test_key_value_heads_of_falcon(changes, kv_heads):
    assert read("Falcon-7B", **changes).kv_heads == kv_heads


def test_narrow_embedding_of_a_small_opt():
    plain, narrow = read("OPT-125m"), read("OPT-125m", word_embed_proj_dim=512)
    assert plain.parameters().embedding - narrow.parameters().embedding == 50272 * (768 - 512)


def test_four_bit_arithmetic_needs_weights_and_inputs_of_four_bits():
    def bits(settings):
        return read("Qwen2-57B-A14B", quantization_config=settings).arithmetic_bits

    def compressed(width, inputs):
        group = {"weights": {"num_bits": width, "type": "float"}, "input_activations": inputs and {"num_bits": inputs, "type": "float"}}
        return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}}

    assert bits({"quant_method": "modelopt", "quant_algo": "NVFP4"}) == bits(compressed(4, 4)) == 4
    assert bits(FP8) == bits(compressed(8, 8)) == bits({"quant_method": "modelopt", "quant_algo": "FP8"}) == 8
    assert bits(None) == bits(compressed(4, None)) == bits({"quant_method": "mxfp4"}) == 16
