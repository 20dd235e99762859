"""A model's copy on a node's own disk: made once, whole or absent, checked during the copy."""

from __future__ import annotations

import shutil
import threading
from collections import namedtuple
from pathlib import Path

import pytest

from servemark.errors import ServemarkError, WeightsRefused
from servemark.files import private
from servemark.nodes import survey
from servemark.nodes.survey import Spec
from servemark.weights import builtin, local, manifest


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    directory = tmp_path_factory.mktemp("shared") / "tiny"
    builtin.make("tiny-moe", directory)
    (directory / "extra").mkdir()
    (directory / "extra" / "notes.txt").write_text("in a folder")
    return manifest.build("tiny", "./tiny", directory)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "local" / "models"


def copy(model, folder) -> float:
    return local.copy(model, folder, private.private)


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.suffix != ".lock"}


def test_copy_matches_manifest_and_is_made_once(model, folder):
    assert copy(model, folder) > 0
    target = local.place(folder, model.digest)
    manifest.verify(model.model_copy(update={"path": str(target)}))
    assert files(folder) == {target.name} and folder.stat().st_mode & 0o777 == 0o700
    before = (target / "config.json").stat().st_ino
    assert copy(model, folder) == 0.0
    assert (target / "config.json").stat().st_ino == before


def test_models_that_differ_in_a_readme_share_one_copy(model, folder, tmp_path):
    other = shutil.copytree(model.path, tmp_path / "other")
    (other / "README.md").write_text("words")
    again = manifest.build("other", "./other", other)
    assert copy(again, folder) > 0 and copy(model, folder) == 0.0
    assert not (local.place(folder, again.digest) / "README.md").exists()


def test_copy_that_lost_a_file_is_made_again(model, folder):
    copy(model, folder)
    target = local.place(folder, model.digest)
    (target / "model.safetensors").unlink()
    (folder / f".{target.name}").mkdir()
    assert copy(model, folder) > 0
    manifest.verify(model.model_copy(update={"path": str(target)}))


@pytest.mark.parametrize("damage", [b"other content of the same file", b""])
def test_file_that_differs_from_manifest_is_refused_and_draft_removed(model, folder, tmp_path, damage):
    changed = shutil.copytree(model.path, tmp_path / "changed")
    (changed / "tokenizer.json").write_bytes(damage)
    with pytest.raises(WeightsRefused) as caught:
        copy(model.model_copy(update={"path": str(changed)}), folder)
    assert caught.value.reason == "weights_changed" and "tokenizer.json" in caught.value.what and files(folder) == set()


def test_missing_file_is_named(model, folder, tmp_path):
    changed = shutil.copytree(model.path, tmp_path / "changed")
    (changed / "config.json").unlink()
    with pytest.raises(WeightsRefused) as caught:
        copy(model.model_copy(update={"path": str(changed)}), folder)
    assert caught.value.reason == "copy_failed" and "config.json" in caught.value.what and files(folder) == set()


def test_full_disk_is_refused_before_the_copy(model, folder, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: namedtuple("Usage", "free")(model.bytes))
    with pytest.raises(WeightsRefused) as caught:
        copy(model, folder)
    assert caught.value.reason == "no_space" and "local_models" in caught.value.do and files(folder) == set()


def test_two_servers_at_once_make_one_copy(model, folder):
    took = []
    threads = [threading.Thread(target=lambda: took.append(copy(model, folder))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(value > 0 for value in took) == [False, True]


def test_folder_that_others_can_write_is_refused(model, folder):
    folder.mkdir(parents=True, mode=0o777)
    folder.chmod(0o777)
    with pytest.raises(ServemarkError) as caught:
        copy(model, folder)
    assert caught.value.reason == "runtime_folder_refused" and str(folder) in caught.value.what


def test_node_reports_seconds_of_copy_or_failure_with_its_name(model, folder, tmp_path, monkeypatch):
    monkeypatch.setenv("SLURMD_NODENAME", "node7")
    spec = Spec(task="copy", attempt=str(tmp_path), scratch=str(tmp_path), model=model, models=str(folder))
    assert survey.run_task(spec).copied_s
    assert survey.run_task(spec).copied_s == 0.0
    lost = spec.model_copy(update={"model": model.model_copy(update={"path": "/nowhere", "digest": "0" * 64})})
    failure = survey.run_task(lost).failure
    assert failure.reason == "copy_failed" and failure.detail.startswith("Node node7: /nowhere/")
