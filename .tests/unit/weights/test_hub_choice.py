"""Names of models of the hub, and the files of a repository that servemark downloads."""

from __future__ import annotations

import hashlib

import pytest

from builders.standin_hub import blob, small_model
from servemark.config.model import Model
from servemark.errors import WeightsRefused
from servemark.weights import hub_source
from servemark.weights.hub_source import HubSource, RemoteFile

COMMIT = "0123456789abcdef0123456789abcdef01234567"
WHOLE = ["config.json", "tokenizer.json"]


def choose(paths, shards=None, *, dummy=False):
    return hub_source.choose(HubSource("org/name"), paths, shards, dummy=dummy)


@pytest.mark.parametrize(
    ("text", "repository", "revision"),
    [
        ("hf:Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B", "main"),
        ("hf:Qwen/Qwen3-0.6B@v1.0", "Qwen/Qwen3-0.6B", "v1.0"),
        ("hf:org/name@refs/pr/3", "org/name", "refs/pr/3"),
        (f"hf:org/name@{COMMIT}", "org/name", COMMIT),
    ],
)
def test_hub_sources_are_parsed(text, repository, revision):
    assert hub_source.parse(text) == HubSource(repository, revision)
    assert Model(source=text).source == text


@pytest.mark.parametrize(
    "text",
    [
        "hf:",
        "hf:name",
        "hf:org/name@",
        "hf:org/name@a b",
        "hf:org/name@../x",
        "hf:org/na--me",
        "hf:a/b/c",
        "hf:../b",
        "hf:org/.b",
        "hf:a/b@c@d",
    ],
)
def test_malformed_hub_sources_are_refused(text):
    assert hub_source.parse(text) is None
    with pytest.raises(ValueError, match="hf:ORG/NAME@REVISION"):
        Model(source=text)


def test_missing_directory_suggests_the_hub_source():
    with pytest.raises(ValueError, match=r"`hf:Qwen/Qwen3-0\.6B`"):
        Model(source="Qwen/Qwen3-0.6B")


def test_stated_source_has_revision_and_commit():
    assert HubSource("org/name").stated(COMMIT) == f"hf:org/name@main (commit {COMMIT})"
    assert HubSource("org/name", COMMIT).stated(COMMIT) == f"hf:org/name@{COMMIT}"


def test_weights_in_other_formats_are_left_out():
    assert choose(small_model()) == ["LICENSE", "config.json", "model.safetensors", "tokenizer.json"]


@pytest.mark.parametrize(
    ("beside", "shards", "weights"),
    [
        (["model.safetensors", "consolidated.safetensors", "params.json"], None, ["model.safetensors", "params.json"]),
        (["model.safetensors", "model.fp16.safetensors"], None, ["model.safetensors"]),
        (["a.safetensors", "b.safetensors", "consolidated.safetensors"], None, ["a.safetensors", "b.safetensors"]),
        (["consolidated.safetensors"], None, ["consolidated.safetensors"]),
        (
            ["m-1.safetensors", "m-2.safetensors", "model.safetensors", "model.safetensors.index.json"],
            ["m-1.safetensors", "m-2.safetensors"],
            ["m-1.safetensors", "m-2.safetensors", "model.safetensors.index.json"],
        ),
        (["parts/1.safetensors", "1.safetensors"], ["parts/1.safetensors"], ["parts/1.safetensors"]),
        (["model.safetensors", "onnx/config.json", "pytorch_model.bin.index.json"], None, ["model.safetensors"]),
        (["model.safetensors", ".hidden.json"], None, ["model.safetensors"]),
    ],
)
def test_one_form_of_the_weights_is_chosen(beside, shards, weights):
    assert choose([*WHOLE, *beside], shards) == sorted([*WHOLE, *weights])


def test_no_weights_are_chosen_for_random_weights():
    weights = ["model-1.safetensors", "model.safetensors.index.json", "pytorch_model.bin"]
    assert choose([*WHOLE, *weights], dummy=True) == choose(WHOLE, dummy=True) == WHOLE


def test_tokenizers_templates_and_code_are_chosen():
    beside = ["merges.txt", "tokenizer.model.v3", "qwen.tiktoken", "chat_template.jinja", "modeling_x.py"]
    beside.append("additional_chat_templates/tool_use.jinja")
    assert set(beside) <= set(choose([*WHOLE, "model.safetensors", *beside]))


@pytest.mark.parametrize(
    ("paths", "shards", "reason", "named"),
    [
        (["tokenizer.json", "model.safetensors"], None, "config_missing", "config.json"),
        (["config.json", "model.safetensors"], None, "tokenizer_missing", "tokenizer.model"),
        ([*WHOLE, "pytorch_model.bin"], None, "weights_missing", "*.safetensors"),
        ([*WHOLE, "a.safetensors"], ["a.safetensors", "b.safetensors"], "shard_missing", "b.safetensors"),
        ([*WHOLE, "../a.safetensors"], ["../a.safetensors"], "link_leaves_directory", "../a.safetensors"),
        ([*WHOLE, "/etc/a.safetensors"], ["/etc/a.safetensors"], "link_leaves_directory", "/etc/a.safetensors"),
        ([*WHOLE, "x/.a.safetensors"], ["x/.a.safetensors"], "link_leaves_directory", "x/.a.safetensors"),
        ([*WHOLE, "x\\a.safetensors"], ["x\\a.safetensors"], "link_leaves_directory", "x\\a.safetensors"),
    ],
)
def test_incomplete_and_unsafe_repositories_are_refused(paths, shards, reason, named):
    with pytest.raises(WeightsRefused) as refused:
        choose(paths, shards)
    assert refused.value.reason == reason and named in refused.value.what and refused.value.do


def test_file_is_compared_with_the_digest_of_the_hub(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"content")
    sha256 = hashlib.sha256(b"content").hexdigest()
    assert RemoteFile("file", 7, sha256).matches(path, sha256)
    assert not RemoteFile("file", 7, "0" * 64).matches(path, sha256)
    assert RemoteFile("file", 7, blob(b"content")).matches(path, sha256)
    assert not RemoteFile("file", 7, "0" * 40).matches(path, sha256)
