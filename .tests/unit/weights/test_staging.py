"""Staging of a model: a builtin one, made once in the cache, or a local directory."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from filelock import FileLock

from servemark.errors import WeightsRefused
from servemark.files.storage import CacheClosed
from servemark.weights import builtin, staging
from servemark.weights.manifest import verify


@pytest.fixture
def made(monkeypatch):
    """Names of the models that were made."""
    calls = []
    make = builtin.make

    def counted(kind, directory):
        calls.append(kind)
        make(kind, directory)

    monkeypatch.setattr(builtin, "make", counted)
    return calls


def test_builtin_model_is_made_once(tmp_path, told, made):
    first = staging.stage("tiny", "builtin:tiny-dense", tmp_path, told)
    again = staging.stage("other", "builtin:tiny-dense", tmp_path, told)
    assert made == ["tiny-dense"]
    assert first.path == again.path and first.digest == again.digest and again.name == "other"
    assert Path(first.path).parent == tmp_path / "models" and Path(first.path).name.startswith("tiny-dense-")
    assert (first.source, first.parameters > 0, first.weight_bytes > 0) == ("builtin:tiny-dense", True, True)
    verify(first)
    assert len(told.words) == 3 and told.words[1:] == [f"hashing {first.path}"] * 2


def test_existing_model_needs_no_lock_and_closed_cache_is_refused(tmp_path, told, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    first = staging.stage("tiny", "builtin:tiny-dense", tmp_path, told)
    monkeypatch.setattr(FileLock, "acquire", refuse)
    assert staging.stage("tiny", "builtin:tiny-dense", tmp_path, told) == first
    with pytest.raises(CacheClosed) as caught:
        staging.stage("tiny", "builtin:tiny-moe", tmp_path, told)
    assert caught.value.reason == "cache_not_writable"


def test_edited_code_makes_another_model(tmp_path, told, made, monkeypatch):
    before = staging.stage("tiny", "builtin:tiny-dense", tmp_path, told)
    edited = tmp_path / "builtin.py"
    edited.write_text("# other code")
    monkeypatch.setattr(builtin, "__file__", str(edited))
    after = staging.stage("tiny", "builtin:tiny-dense", tmp_path, told)
    assert before.path != after.path and made == ["tiny-dense"] * 2


def test_two_runs_at_once_make_one_model(tmp_path, told, made):
    found = []
    threads = [threading.Thread(target=lambda: found.append(staging.stage("t", "builtin:tiny-dense", tmp_path, told))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == ["tiny-dense"] and found[0] == found[1]


def test_failed_attempt_leaves_no_model_folder(tmp_path, told, monkeypatch):
    def broken(kind, directory):
        (directory / "config.json").write_text("{}")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(builtin, "make", broken)
        with pytest.raises(OSError):
            staging.stage("tiny", "builtin:tiny-dense", tmp_path, told)
    assert [path.suffix for path in (tmp_path / "models").iterdir()] == [".lock"]
    assert staging.stage("tiny", "builtin:tiny-dense", tmp_path, told).parameters > 0


def test_unknown_builtin_model_is_refused(tmp_path, told):
    with pytest.raises(WeightsRefused):
        staging.stage("huge", "builtin:huge", tmp_path, told)


def test_local_directory_is_used_in_place(tmp_path, told, monkeypatch):
    model = tmp_path / "my-model"
    model.mkdir()
    builtin.make("tiny-dense", model)
    monkeypatch.setenv("HOME", str(tmp_path))
    for source in (str(model), "~/my-model"):
        staged = staging.stage("mine", source, tmp_path / "cache", told)
        assert (staged.path, staged.source) == (str(model), source)
    assert not (tmp_path / "cache").exists()


def test_missing_local_directory_is_refused_by_its_key(tmp_path, told):
    with pytest.raises(WeightsRefused) as refused:
        staging.stage("mine", str(tmp_path / "nowhere"), tmp_path, told)
    assert refused.value.reason == "model_missing" and "models.mine.source" in refused.value.what
