"""Names of models of the hub, and which files of a repository are fetched: pure functions."""

from __future__ import annotations

import hashlib

import pytest

from builders.standin_hub import blob, small_model
from servemark.config.model import Model
from servemark.errors import WeightsRefused
from servemark.weights import hub_files, hub_source
from servemark.weights.hub_files import RemoteFile
from servemark.weights.hub_source import HubSource

COMMIT = "0123456789abcdef0123456789abcdef01234567"
WHOLE = ["config.json", "tokenizer.json"]


def choose(paths, shards=None, *, dummy=False):
    chosen = hub_files.choose("org/name", [RemoteFile(path, 1) for path in paths], shards, dummy=dummy)
    return [file.path for file in chosen]


@pytest.mark.parametrize(
    ("text", "repository", "revision"),
    [
        ("hf:Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B", "main"),
        ("hf:Qwen/Qwen3-0.6B@v1.0", "Qwen/Qwen3-0.6B", "v1.0"),
        ("hf:org/name@refs/pr/3", "org/name", "refs/pr/3"),
        (f"hf:org/name@{COMMIT}", "org/name", COMMIT),
    ],
)
def test_sources_of_the_hub(text, repository, revision):
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
def test_what_is_no_source_of_the_hub(text):
    assert hub_source.parse(text) is None
    with pytest.raises(ValueError, match="a model of the hub is written hf:ORG/NAME or hf:ORG/NAME@REVISION"):
        Model(source=text)


def test_a_directory_that_is_not_there_is_answered_with_the_hub_s_way_to_write_it():
    with pytest.raises(
        ValueError, match=r"there is no such directory; a model of the hub is written `hf:Qwen/Qwen3-0.6B`"
    ):
        Model(source="Qwen/Qwen3-0.6B")


def test_the_stated_source_says_what_was_asked_for_and_which_commit_it_was():
    assert HubSource("org/name").stated(COMMIT) == f"hf:org/name@main (commit {COMMIT})"
    assert HubSource("org/name", COMMIT).stated(COMMIT) == f"hf:org/name@{COMMIT}"


def test_other_formats_and_what_nobody_serves_are_left_out():
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
def test_the_weights_are_fetched_once(beside, shards, weights):
    assert choose([*WHOLE, *beside], shards) == sorted([*WHOLE, *weights])


def test_random_weights_need_no_weights():
    weights = ["model-1.safetensors", "model.safetensors.index.json", "pytorch_model.bin"]
    assert choose([*WHOLE, *weights], dummy=True) == choose(WHOLE, dummy=True) == WHOLE


def test_tokenizers_templates_and_code_stand_beside_the_weights():
    beside = ["merges.txt", "tokenizer.model.v3", "qwen.tiktoken", "chat_template.jinja", "modeling_x.py"]
    beside.append("additional_chat_templates/tool_use.jinja")
    assert set(beside) <= set(choose([*WHOLE, "model.safetensors", *beside]))


@pytest.mark.parametrize(
    ("paths", "shards", "reason", "words"),
    [
        (["tokenizer.json", "model.safetensors"], None, "config_missing", "has no config.json"),
        (["config.json", "model.safetensors"], None, "tokenizer_missing", "has no tokenizer"),
        ([*WHOLE, "pytorch_model.bin"], None, "weights_missing", "safetensors"),
        ([*WHOLE, "a.safetensors"], ["a.safetensors", "b.safetensors"], "shard_missing", "b.safetensors"),
        ([*WHOLE, "../a.safetensors"], ["../a.safetensors"], "link_leaves_directory", "outside of its folder"),
        ([*WHOLE, "/etc/a.safetensors"], ["/etc/a.safetensors"], "link_leaves_directory", "outside of its folder"),
        ([*WHOLE, "x/.a.safetensors"], ["x/.a.safetensors"], "link_leaves_directory", "outside of its folder"),
    ],
)
def test_a_repository_that_is_no_whole_model_is_refused_before_anything_is_fetched(paths, shards, reason, words):
    with pytest.raises(WeightsRefused, match=words) as refused:
        choose(paths, shards)
    assert refused.value.reason == reason and refused.value.do


def test_a_file_is_held_against_the_digest_that_the_hub_states(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"content")
    sha256 = hashlib.sha256(b"content").hexdigest()
    assert hub_files.differs(RemoteFile("file", 7, sha256=sha256), path) is None
    assert hub_files.differs(RemoteFile("file", 7, blob=blob(b"content")), path) is None
    assert "it has 7 bytes, the hub states 8" in hub_files.differs(RemoteFile("file", 8), path)
    assert f"its sha256 is {sha256}" in hub_files.differs(RemoteFile("file", 7, sha256="0" * 64), path)
    assert "its git sha1 is" in hub_files.differs(RemoteFile("file", 7, blob="0" * 40), path)
