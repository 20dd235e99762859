"""The shape of a model for ``servemark plan``: from a folder, an index, the hub, or by hand."""

from __future__ import annotations

import json

import pytest

from builders.standin_hub import REPOSITORY
from servemark.errors import WeightsRefused
from servemark.weights import builtin, manifest, shape
from servemark.weights.files_read import INDEX


def test_folder_with_weights_states_their_bytes(tmp_path):
    builtin.make("tiny-dense", tmp_path / "tiny")
    found = shape.read(str(tmp_path / "tiny"), tmp_path)
    assert found.weight_bytes == manifest.examine(tmp_path / "tiny").weight_bytes > 0
    assert (found.config, found.source) == (builtin.CONFIGS["tiny-dense"], str(tmp_path / "tiny"))


def test_index_without_shards_states_the_bytes(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(builtin.CONFIGS["tiny-dense"]))
    assert shape.read(str(tmp_path), tmp_path).weight_bytes is None
    (tmp_path / INDEX).write_text(json.dumps({"metadata": {"total_size": 1234}, "weight_map": {"a": "model-00001-of-00001.safetensors"}}))
    found = shape.read(str(tmp_path), tmp_path)
    # The folder has no weights, so that a configuration cannot name it.
    assert (found.weight_bytes, found.source) == (1234, None)


def test_keys_by_hand_are_those_of_config_json():
    found = shape.read("hidden_size=64,tie_word_embeddings=true,torch_dtype=bfloat16,quantization_config.quant_method=fp8", None).config
    assert found == {
        "hidden_size": 64,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "quantization_config": {"quant_method": "fp8"},
    }


def test_hub_is_asked_once_for_config_and_size(hub, tmp_path):
    found = shape.read(f"hf:{REPOSITORY}", tmp_path)
    assert found.config["model_type"] and found.weight_bytes and found.source == f"hf:{REPOSITORY}"
    assert [path for path in hub.fetched() if path.endswith(".safetensors")] == []
    hub.asked.clear()
    assert shape.read(f"hf:{REPOSITORY}", tmp_path) == found and hub.asked == []


def test_unreachable_hub_and_missing_model_are_refused(hub, tmp_path, monkeypatch):
    with pytest.raises(WeightsRefused) as refused:
        shape.read("hf:nobody/nothing", tmp_path)
    assert refused.value.reason == "hub_repository_missing"
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    with pytest.raises(WeightsRefused) as refused:
        shape.read(f"hf:{REPOSITORY}", tmp_path)
    assert refused.value.reason == "hub_unreachable"
    with pytest.raises(WeightsRefused) as refused:
        shape.read("/nowhere/at/all", tmp_path)
    assert refused.value.reason == "model_missing"
