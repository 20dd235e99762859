"""The builtin models: files, shapes and tokenizer that vLLM needs, and the same bytes every time."""

import hashlib
import json
import subprocess
import sys

import numpy as np
import pytest
from safetensors import safe_open
from tokenizers import Tokenizer

from servemark.errors import WeightsRefused
from servemark.weights import builtin, manifest
from servemark.weights.architecture import Architecture

NAMES = ["tiny-dense", "tiny-moe"]


@pytest.fixture(scope="module", params=NAMES)
def model(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp("model") / request.param
    builtin.make(request.param, directory)
    return directory


def hashes(directory):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in directory.iterdir()}


def test_another_process_writes_the_same_bytes(model, tmp_path):
    code = "import sys; from pathlib import Path; from servemark.weights import builtin; builtin.make(sys.argv[1], Path(sys.argv[2]))"
    subprocess.run([sys.executable, "-c", code, model.name, str(tmp_path)], check=True)
    assert hashes(tmp_path) == hashes(model)


def test_model_has_every_file_of_server_and_client(model):
    assert {path.name for path in model.iterdir()} == {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert "message.content" in json.loads((model / "tokenizer_config.json").read_text())["chat_template"]


def test_safetensors_file_has_the_shapes_of_the_config(model):
    config = json.loads((model / "config.json").read_text())
    with safe_open(model / "model.safetensors", framework="numpy") as weights:
        names = set(weights.keys())
        assert weights.metadata() == {"format": "pt"}
        assert weights.get_slice("lm_head.weight").get_shape() == [config["vocab_size"], config["hidden_size"]]
        assert {weights.get_slice(name).get_dtype() for name in names} == {"BF16"}
    experts = {name for name in names if ".experts." in name}
    assert len(experts) == (3 * config["num_experts"] * config["num_hidden_layers"] if "num_experts" in config else 0)


def test_parameter_count_is_that_of_the_shape_plus_norms(model):
    record = manifest.build(model.name, f"builtin:{model.name}", model)
    shape = Architecture.from_config(record.config).parameters().total
    config = record.config
    norms = config["num_hidden_layers"] * 2 * (config["hidden_size"] + config["head_dim"]) + config["hidden_size"]
    assert record.parameters == shape + norms
    assert record.weight_bytes == 2 * record.parameters
    assert 800_000 < record.parameters < 1_200_000


def test_tokenizer_has_the_vocabulary_size_of_the_config(model):
    config = json.loads((model / "config.json").read_text())
    assert Tokenizer.from_file(str(model / "tokenizer.json")).get_vocab_size() == config["vocab_size"]


@pytest.mark.parametrize("text", ["The cluster schedules a job.", "Grüße, 世界 \U0001f680\n\t{}", ""])
def test_tokenizer_decodes_to_the_encoded_text(model, text):
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_random_tokens_decode_and_encode_to_a_similar_number(model):
    """vLLM's random dataset decodes, encodes again and truncates. Far fewer tokens would give it shorter prompts."""
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    ids = np.random.RandomState(0).randint(len(builtin.SPECIAL_TOKENS), builtin.VOCABULARY, 512).tolist()
    again = tokenizer.encode(tokenizer.decode(ids)).ids
    assert 0.9 * len(ids) < len(again) < 1.6 * len(ids)


@pytest.mark.parametrize("key", ["num_attention_heads", "num_key_value_heads", "intermediate_size"])
def test_sizes_can_be_split_for_tensor_parallel_2(model, key):
    assert json.loads((model / "config.json").read_text())[key] % 2 == 0


@pytest.mark.parametrize(
    ("value", "bits"),
    [(1.0, 0x3F80), (-2.0, 0xC000), (1.0 + 2**-8, 0x3F80), (1.0 + 3 * 2**-8, 0x3F82), (1.0 + 2**-8 + 2**-20, 0x3F81)],
)
def test_bfloat16_rounds_to_nearest_and_ties_to_even(value, bits):
    assert builtin._bfloat16(np.array([value], dtype=np.float32)) == bits.to_bytes(2, "little")


def test_unknown_name_is_refused_with_the_known_ones(tmp_path):
    with pytest.raises(WeightsRefused, match="tiny-dense, tiny-moe") as caught:
        builtin.make("tiny-dens", tmp_path)
    assert caught.value.reason == "unknown_builtin"
