"""A snapshot of a Hugging Face cache as a model: its links, its digests, and files that are read once."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from builders import hub_cache
from builders.standin_hub import blob
from servemark.errors import WeightsRefused
from servemark.files import content
from servemark.files.content import Hashes
from servemark.weights import builtin, manifest, staging


@pytest.fixture
def snapshot(tmp_path) -> Path:
    return hub_cache.make(tmp_path / "hub")


@pytest.fixture
def read(monkeypatch) -> list[int]:
    """Bytes read by each request for digests. All files were changed long before."""
    monkeypatch.setattr(content, "_CLOCK_S", -1.0)
    found: list[int] = []
    real = Hashes._one

    def counted(self, path):
        digest, size = real(self, path)
        found.append(size)
        return digest, size

    monkeypatch.setattr(Hashes, "_one", counted)
    return found


def add(snapshot: Path, name: str, text: bytes, digest: str | None = None) -> Path:
    """Add a file as a download does; return its blob."""
    stored = snapshot.parents[1] / "blobs" / (digest or blob(text))
    stored.write_bytes(text)
    (snapshot / name).symlink_to(f"../../blobs/{stored.name}")
    return stored


def test_snapshot_is_the_same_model_as_a_copy_without_links(snapshot, tmp_path, told):
    builtin.make("tiny-dense", tmp_path / "plain")
    plain = manifest.build("m", "x", tmp_path / "plain")
    add(snapshot, "README.md", b"# Tiny")
    add(snapshot, "pytorch_model.bin", b"pickle")
    found = staging.stage("m", str(snapshot), tmp_path / "cache", told)
    assert (found.digest, found.path, found.ignored) == (plain.digest, str(snapshot), ("pytorch_model.bin",))
    assert found.weight_bytes == plain.weight_bytes
    manifest.verify(found)
    shutil.copytree(snapshot, tmp_path / "copied")
    assert manifest.build("m", "x", tmp_path / "copied").digest == plain.digest


def test_links_may_lead_to_the_blobs_of_the_repository_alone(snapshot):
    (snapshot / "out.txt").symlink_to("/etc/hostname")
    with pytest.raises(WeightsRefused) as caught:
        manifest.build("m", "x", snapshot)
    assert caught.value.reason == "link_leaves_directory"
    (snapshot / "out.txt").unlink()
    other = snapshot.parents[2] / "models--Org--Other" / "blobs"
    other.mkdir(parents=True)
    (other / "x").write_text("x")
    (snapshot / "x.json").symlink_to(other / "x")
    with pytest.raises(WeightsRefused) as caught:
        manifest.build("m", "x", snapshot)
    assert caught.value.reason == "link_leaves_directory"


def test_unchanged_files_are_read_once(snapshot, tmp_path, told, read):
    first = staging.stage("m", str(snapshot), tmp_path / "cache", told)
    size = sum(read)
    assert size == first.bytes
    assert staging.stage("m", str(snapshot), tmp_path / "cache", told) == first
    manifest.verify(first, hashes=Hashes(tmp_path / "cache", first.path))
    assert sum(read) == size, "read again"
    add(snapshot, "generation.json", b"{}")
    assert staging.stage("m", str(snapshot), tmp_path / "cache", told).digest != first.digest
    assert sum(read) == size + 2


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_blob_that_contradicts_its_name_is_refused(snapshot, name):
    stored = (snapshot / name).resolve()
    text = stored.read_bytes()
    stored.write_bytes(text.replace(b"128", b"129") if name == "config.json" else text[:-1] + b"\x7f")
    with pytest.raises(WeightsRefused) as caught:
        manifest.build("m", "x", snapshot)
    assert caught.value.reason == "blob_differs" and name in caught.value.what
    assert caught.value.look == str(stored) and caught.value.do


def test_blob_with_a_name_of_another_kind_is_accepted(snapshot):
    add(snapshot, "x.json", b"{}", "etag-of-a-mirror")
    assert "x.json" in {file.path for file in manifest.build("m", "x", snapshot).files}


def test_large_file_is_not_read_again_for_its_git_name(snapshot, monkeypatch):
    monkeypatch.setattr("servemark.weights.folder._SMALL", 10)
    add(snapshot, "large.json", b"[1, 2, 3, 4, 5]", "0" * 40)
    assert "large.json" in {file.path for file in manifest.build("m", "x", snapshot).files}
