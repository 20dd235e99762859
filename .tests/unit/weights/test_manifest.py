"""The manifest: counts, digests and refusals; each refusal names the file."""

import json
import os
import shutil
from pathlib import Path

import pytest

from servemark.errors import WeightsRefused
from servemark.files import content
from servemark.records import Manifest
from servemark.weights import builtin, manifest
from servemark.weights.files_read import INDEX


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    directory = tmp_path_factory.mktemp("pristine") / "model"
    builtin.make("tiny-dense", directory)
    return directory


@pytest.fixture
def model(pristine, tmp_path):
    return shutil.copytree(pristine, tmp_path / "model")


def build(directory):
    return manifest.build("tiny", "builtin:tiny-dense", directory)


def safetensors(header, data=b""):
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def test_manifest_lists_every_file_and_is_read_back_unchanged(model, tmp_path):
    record = build(model)
    assert [file.path for file in record.files] == sorted(path.name for path in model.iterdir())
    assert record.bytes == sum(path.stat().st_size for path in model.iterdir())
    assert record.config == json.loads((model / "config.json").read_text())
    record.write(tmp_path / "manifest.json")
    assert Manifest.read(tmp_path / "manifest.json") == record


def test_digest_depends_on_content_and_names_only(model, pristine, tmp_path):
    digest = build(model).digest
    os.utime(model / "config.json", (1, 1))
    (model / ".cache").mkdir()
    (model / ".cache" / "lock.bin").write_text("ignored")
    (model / ".gitattributes").write_text("ignored")
    assert build(model).digest == digest == build(pristine).digest
    (model / "config.json").rename(model / "config2.json")
    shutil.copy(pristine / "config.json", model / "config.json")
    assert build(model).digest != digest


@pytest.mark.parametrize(
    "name",
    [
        "README.md",
        "LICENSE",
        "License.txt",
        "USE_POLICY.md",
        "assets/plot.PNG",
        "paper.pdf",
        "notes/model card.md",
        "scores.csv",
        "onnx/config.json",
        "pytorch_model.bin.index.json",
    ],
)
def test_file_that_no_server_reads_is_listed_and_does_not_count(model, name):
    before = build(model)
    (model / name).parent.mkdir(exist_ok=True)
    (model / name).write_text("words")
    after = build(model)
    assert after.digest == before.digest and len(after.files) == len(before.files) + 1
    manifest.verify(before)
    (model / name).write_text("other words")
    manifest.verify(after)


@pytest.mark.parametrize(
    "name",
    [
        "chat_template.jinja",
        "generation_config.json",
        "merges.txt",
        "modeling_x.py",
        "consolidated.safetensors",
        "params.json",
        "additional_chat_templates/tools.jinja",
        "x.tiktoken",
    ],
)
def test_file_that_a_server_may_read_changes_the_digest(model, name):
    before = build(model).digest
    (model / name).parent.mkdir(exist_ok=True)
    (model / name).write_text("")
    assert build(model).digest != before


@pytest.mark.parametrize("kind", ["tiny-dense", "tiny-moe"])
def test_dummy_manifest_has_no_weights_and_parameters_of_the_shape(tmp_path, kind):
    directory = tmp_path / kind
    builtin.make(kind, directory)
    real = build(directory)
    made = manifest.build("tiny", "./model", directory, dummy=True)
    assert made.load_format == "dummy" and made.weight_bytes is None and made.digest != real.digest
    assert [file.path for file in made.files] == [f.path for f in real.files if not f.path.endswith(".safetensors")]
    # Norms are not counted from the shape.
    assert made.parameters == pytest.approx(real.parameters, rel=0.005)
    (directory / "model.safetensors").unlink()
    assert manifest.build("tiny", "./model", directory, dummy=True) == made
    manifest.verify(made)
    (directory / "config.json").write_text("{}")
    with pytest.raises(WeightsRefused, match="config"):
        manifest.verify(made)


def test_weights_of_several_shards_are_added_up(model):
    header = {"__metadata__": {}, "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}
    one = build(model)
    (model / "extra-00002.safetensors").write_bytes(safetensors(header, b"\0" * 24))
    two = build(model)
    assert (two.weight_bytes - one.weight_bytes, two.parameters - one.parameters) == (24, 6)


def test_second_form_of_the_weights_is_hashed_but_its_tensors_are_not_added(model):
    header = {"a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}
    one = build(model)
    (model / "consolidated.safetensors").write_bytes(safetensors(header, b"\0" * 24))
    two = build(model)
    assert "consolidated.safetensors" in {file.path for file in two.files} and two.digest != one.digest
    assert (two.weight_bytes, two.parameters) == (one.weight_bytes, one.parameters)


@pytest.mark.parametrize(
    "name", ["original/model.safetensors", "pytorch_model.bin", "metal/model.bin", "w.PTH", "optimizer.pt", "o/x.pkl", "x.gguf", "x.h5"]
)
def test_weights_that_vllm_does_not_load_are_ignored_with_a_note(model, told, name):
    one = build(model)
    (model / name).parent.mkdir(exist_ok=True)
    (model / name).write_bytes(b"never read")
    two = manifest.build("tiny", "builtin:tiny-dense", model, None, told)
    assert two.ignored == (name,) and two.model_copy(update={"ignored": ()}) == one
    assert [name in words for words in told.words] == [True]
    manifest.verify(one)
    manifest.verify(two)
    (model / name).unlink()
    manifest.verify(two)


def test_shard_in_a_folder_counts_if_the_index_names_it(model):
    header = {"a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}
    (model / "parts").mkdir()
    (model / "parts" / "1.safetensors").write_bytes(safetensors(header, b"\0" * 24))
    (model / INDEX).write_text(json.dumps({"weight_map": {"a": "parts/1.safetensors"}}))
    one = build(model)
    assert one.weight_bytes == 24 and one.ignored == ()
    (model / "parts" / "1.safetensors").write_bytes(safetensors(header, b"\1" * 24))
    with pytest.raises(WeightsRefused, match=r"changed: parts/1\.safetensors"):
        manifest.verify(one)
    assert build(model).digest != one.digest


def test_own_code_of_a_model_may_read_every_file(model):
    (model / "scores.csv").write_text("1")
    one = build(model)
    (model / "modeling_x.py").write_text("")
    two = build(model)
    (model / "scores.csv").write_text("2")
    (model / "README.md").write_text("words")
    assert len({one.digest, two.digest, build(model).digest}) == 3
    (model / "scores.csv").write_text("1")
    assert build(model).digest == two.digest


def test_shard_outside_the_index_is_not_counted(model):
    header = {"a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}
    one = build(model)
    (model / INDEX).write_text(json.dumps({"weight_map": {"w": "model.safetensors"}}))
    (model / "stale.safetensors").write_bytes(safetensors(header, b"\0" * 24))
    assert build(model).weight_bytes == one.weight_bytes


def test_files_in_folders_and_links_to_them_are_listed(model):
    (model / "original").mkdir()
    (model / "original" / "params.json").write_text("{}")
    (model / "alias.json").symlink_to("config.json")
    assert {"original/params.json", "alias.json"} <= {file.path for file in build(model).files}


def truncate(path, size):
    path.write_bytes(path.read_bytes()[:size])


BREAKAGES = {
    "no config": (lambda d: (d / "config.json").unlink(), "config.json", "config_missing"),
    "config not json": (lambda d: (d / "config.json").write_text("{"), "config.json", "weights_broken"),
    "config not an object": (lambda d: (d / "config.json").write_text("[]"), "config.json", "weights_broken"),
    "no tokenizer": (lambda d: (d / "tokenizer.json").unlink(), "tokenizer.json", "tokenizer_missing"),
    "no weights": (lambda d: (d / "model.safetensors").unlink(), "model.safetensors", "weights_missing"),
    **{
        f"no weights but {name}": (
            lambda d, name=name: (d / "model.safetensors").rename(d / name),
            name,
            "pickle_weights",
        )
        for name in ("weights.bin", "weights.pt", "w.PTH", "weights.ckpt", "weights.pkl")
    },
    "no weights but another program's": (
        lambda d: (d / "model.safetensors").rename(d / "model.gguf"),
        "model.safetensors",
        "weights_missing",
    ),
    "missing shard by its number": (
        lambda d: (d / "model.safetensors").rename(d / "model-00001-of-00002.safetensors"),
        "model-00002-of-00002.safetensors",
        "shard_missing",
    ),
    "missing shard": (
        lambda d: (d / INDEX).write_text(json.dumps({"weight_map": {"a": "model-00002-of-2.safetensors"}})),
        "model-00002-of-2.safetensors",
        "shard_missing",
    ),
    "index without a map": (lambda d: (d / INDEX).write_text("{}"), INDEX, "weights_broken"),
    "cut in the data": (lambda d: truncate(d / "model.safetensors", 100_000), "model.safetensors", "weights_truncated"),
    "cut in the header": (lambda d: truncate(d / "model.safetensors", 100), "model.safetensors", "weights_truncated"),
    "cut to 3 bytes": (lambda d: truncate(d / "model.safetensors", 3), "model.safetensors", "weights_truncated"),
    "empty shard": (lambda d: truncate(d / "model.safetensors", 0), "model.safetensors", "weights_truncated"),
    "grown shard": (
        lambda d: (d / "model.safetensors").open("ab").write(b"x"),
        "model.safetensors",
        "weights_truncated",
    ),
    "header not json": (
        lambda d: (d / "model.safetensors").write_bytes((4).to_bytes(8, "little") + b"abcd"),
        "model.safetensors",
        "weights_truncated",
    ),
    "header without offsets": (
        lambda d: (d / "model.safetensors").write_bytes(safetensors({"a": {"shape": [1]}})),
        "model.safetensors",
        "weights_truncated",
    ),
    "link out": (lambda d: (d / "out.txt").symlink_to("/etc/hostname"), "out.txt", "link_leaves_directory"),
    "link out of a folder": (
        lambda d: ((d / "o").mkdir(), (d / "o" / "up").symlink_to("../..")),
        "up",
        "link_leaves_directory",
    ),
    "dangling link": (lambda d: (d / "gone.txt").symlink_to("nowhere"), "gone.txt", "weights_missing"),
    "link to a folder": (
        lambda d: ((d / "o").mkdir(), (d / "again").symlink_to("o")),
        "again",
        "link_to_folder",
    ),
    "pipe": (lambda d: os.mkfifo(d / "pipe"), "pipe", "weights_unreadable"),
}


@pytest.mark.parametrize(("damage", "name", "reason"), BREAKAGES.values(), ids=BREAKAGES.keys())
def test_damaged_directory_is_refused_with_name_of_the_file(model, damage, name, reason):
    damage(model)
    with pytest.raises(WeightsRefused) as caught:
        build(model)
    assert name in str(caught.value)
    assert caught.value.reason == reason
    assert caught.value.do


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_unreadable_file_is_refused_by_name(model, name, monkeypatch):
    """Root ignores permissions, so open() raises the error."""
    real = type(model).open

    def deny(self, *args, **kwargs):
        if self.name == name:
            raise PermissionError(13, "Permission denied")
        return real(self, *args, **kwargs)

    monkeypatch.setattr(type(model), "open", deny)
    monkeypatch.setattr(type(model), "read_bytes", lambda self: self.open("rb").read())
    monkeypatch.setattr(content, "open", lambda path, mode: deny(Path(path), mode), raising=False)
    with pytest.raises(WeightsRefused) as caught:
        build(model)
    assert caught.value.reason == "weights_unreadable" and name in caught.value.what


def test_unreadable_folder_is_refused_by_name(model, monkeypatch):
    (model / "locked").mkdir()
    real = os.scandir

    def deny(path):
        if os.path.basename(path) == "locked":
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", deny)
    with pytest.raises(WeightsRefused, match="locked"):
        build(model)


def test_missing_directory_is_refused(tmp_path):
    with pytest.raises(WeightsRefused) as caught:
        build(tmp_path / "nothing")
    assert caught.value.reason == "weights_missing"


def test_config_of_directory_without_weights_can_be_read(model):
    (model / "model.safetensors").unlink()
    assert manifest.read_config(model)["model_type"] == "qwen3"


@pytest.mark.parametrize("quick", [False, True])
def test_unchanged_model_verifies(model, quick):
    record = build(model)
    os.utime(model / "model.safetensors", (1, 1))
    manifest.verify(record, quick=quick)


def test_verify_names_every_difference(model):
    record = build(model)
    (model / "generation_config.json").unlink()
    (model / "new.txt").write_text("")
    (model / "README.md").write_text("not compared")
    truncate(model / "model.safetensors", 1000)
    (model / "tokenizer.json").open("a").write(" ")
    text = (model / "config.json").read_text()
    (model / "config.json").write_text(text.replace("128", "129"))
    with pytest.raises(WeightsRefused) as caught:
        manifest.verify(record)
    for line in (
        "missing: generation_config.json",
        "extra: new.txt",
        "truncated: model.safetensors (1000 of",
        "changed: tokenizer.json",
        "changed: config.json (same size",
    ):
        assert line in str(caught.value)


def test_quick_check_finds_broken_header_but_not_changed_text_of_same_size(model):
    record = build(model)
    (model / "config.json").write_text((model / "config.json").read_text().replace("128", "129"))
    manifest.verify(record, quick=True)
    with (model / "model.safetensors").open("r+b") as stream:
        stream.write(b"\xff" * 8)
    with pytest.raises(WeightsRefused, match=r"changed: model\.safetensors"):
        manifest.verify(record, quick=True)


def test_verify_of_missing_directory_names_its_files(model):
    record = build(model)
    shutil.rmtree(model)
    with pytest.raises(WeightsRefused, match=r"missing: config\.json"):
        manifest.verify(record)
