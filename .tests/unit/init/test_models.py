"""Models: found in the Hugging Face cache and in folders, named by a user, refused; and the tensor parallel size."""

from __future__ import annotations

import pytest

from builders import hub_cache
from servemark.errors import ConfigError
from servemark.init import models
from servemark.weights import builtin
from servemark.weights.architecture import Architecture


def test_model_of_the_hub_cache_is_found_by_its_snapshot(tmp_path):
    snapshot = hub_cache.make(tmp_path)
    (found,) = models.in_hub_cache(tmp_path)
    assert (found.source, found.name) == (str(snapshot), "tiny-1b")
    assert found.title.startswith(f"{hub_cache.REPOSITORY} (") and found.architecture and found.architecture.heads == 4
    assert models.named(f"hf:{hub_cache.REPOSITORY}@v1", (found,)).architecture == found.architecture


def test_incomplete_or_missing_hub_cache_has_no_model(tmp_path):
    assert models.in_hub_cache(tmp_path / "nowhere") == ()
    (hub_cache.make(tmp_path) / "model.safetensors").unlink()
    assert models.in_hub_cache(tmp_path) == ()


def test_folder_is_examined_and_named_after_itself(tmp_path):
    folder = tmp_path / "My Model_8B"
    builtin.make("tiny-moe", folder)
    found = models.named(str(folder))
    assert (found.source, found.name, found.builtin) == (str(folder), "my-model-8b", False)
    assert found.architecture and found.architecture.experts == 4


@pytest.mark.parametrize("text", ["tiny-moe", "builtin:tiny-moe"])
def test_builtin_model_has_two_spellings(text):
    assert models.named(text).source == "builtin:tiny-moe"


def test_model_of_the_hub_has_no_known_shape():
    found = models.named("hf:Org/Name.v2@main")
    assert (found.source, found.name, found.architecture, models.tensor_parallel(found, 8)) == ("hf:Org/Name.v2@main", "name.v2", None, 1)


@pytest.mark.parametrize("text", ["/nowhere/model", "Org/Name", "hf:bad", "builtin:big", "hf:a--b/c"])
def test_unknown_model_is_refused_with_exit_code_2(text):
    with pytest.raises(ConfigError) as caught:
        models.named(text)
    assert (caught.value.exit_code, caught.value.reason) == (2, "model_missing") and text in caught.value.what
    assert text != "Org/Name" or "hf:Org/Name" in str(caught.value.do)


def test_folder_of_models_is_refused_with_their_paths(tmp_path):
    builtin.make("tiny-dense", tmp_path / "one")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"--model .*/one"):
        models.named(str(tmp_path))
    with pytest.raises(ConfigError) as caught:
        models.named(str(tmp_path / "empty"))
    assert caught.value.reason == "config_missing"


def test_folder_with_an_impossible_name_is_refused(tmp_path):
    folder = tmp_path / "a$b"
    builtin.make("tiny-dense", folder)
    with pytest.raises(ConfigError, match=r"--model: "):
        models.named(str(folder))


@pytest.mark.parametrize(("heads", "kv_heads", "width", "gpus", "size"), [(32, 8, 4096, 8, 8), (28, 4, 18944, 8, 4), (14, 2, 4864, 4, 2),
                                                                          (32, 8, 4096, 6, 4), (32, 8, 4096, 0, 1)])  # fmt: skip
def test_tensor_parallel_is_the_largest_that_the_heads_allow(heads, kv_heads, width, gpus, size):
    shape = {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "intermediate_size": width, "hidden_size": 4096}
    architecture = Architecture.from_config(builtin.CONFIGS["tiny-dense"] | shape)
    assert models.tensor_parallel(models.Found("/m", "m", "m", architecture), gpus) == size
