"""``hf:`` models in caches of huggingface_hub: found before anything is fetched, complete and of exactly that revision."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path
from types import SimpleNamespace

import pytest
from huggingface_hub import constants, snapshot_download

from builders import hub_cache as builder
from builders.standin_hub import FIRST, REPOSITORY, SECOND, Fault, small_model, tensors
from servemark.errors import WeightsRefused
from servemark.weights import hub_cache, hub_client, hub_source, shape, staging
from servemark.weights.manifest import verify

OTHER = f"hf:{builder.REPOSITORY}"


def fill(cache: Path, repository: str = REPOSITORY, commit: str = FIRST, *, lacks: str = "") -> Path:
    """Write a repository as the library's cache holds it, with plain files."""
    folder = cache / f"models--{repository.replace('/', '--')}"
    snapshot = folder / "snapshots" / commit
    for name, text in small_model().items():
        if name != lacks:
            (snapshot / name).parent.mkdir(parents=True, exist_ok=True)
            (snapshot / name).write_bytes(text)
    (folder / "refs").mkdir(exist_ok=True)
    (folder / "refs" / "main").write_text(commit)
    return snapshot


@pytest.fixture
def stage(tmp_path, told):
    def one(text: str = f"hf:{REPOSITORY}", hub: Path | None = None, *, dummy: bool = False):
        return staging.stage("m", text, tmp_path / "cache", told, hub=hub, dummy=dummy)

    return one


def test_commit_is_found_and_nothing_is_requested(hub, stage, hugging_face, told):
    snapshot = fill(hugging_face / "hub")
    found = stage(f"hf:{REPOSITORY}@{FIRST}")
    assert (found.path, found.source) == (str(snapshot), f"hf:{REPOSITORY}@{FIRST}")
    assert found.ignored == ("gguf/model.gguf", "original/consolidated.00.pth", "pytorch_model.bin")
    assert hub.asked == [] and any(str(snapshot) in words for words in told.words)
    verify(found)


def test_snapshot_and_download_are_the_same_model(hub, stage, hugging_face, tmp_path, told):
    found = stage(f"hf:{REPOSITORY}@{FIRST}", fill(tmp_path / "site").parents[2])
    fetched = staging.stage("m", f"hf:{REPOSITORY}@{FIRST}", tmp_path / "empty", told)
    assert found.digest == fetched.digest and found.path != fetched.path


@pytest.mark.parametrize("place", ["HF_HUB_CACHE", "HF_HOME", "home", "configured"])
def test_every_cache_is_looked_up(hub, stage, hugging_face, monkeypatch, tmp_path, place):
    cache = {"home": hugging_face / "hub", "HF_HOME": tmp_path / "hf" / "hub"}.get(place, tmp_path / "hf")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache if place == "HF_HUB_CACHE" else tmp_path / "none"))
    monkeypatch.setattr(constants, "HF_HOME", str(tmp_path / "hf" if place == "HF_HOME" else tmp_path / "none"))
    snapshot = fill(cache)
    found = stage(f"hf:{REPOSITORY}@{FIRST}", cache if place == "configured" else None)
    assert found.path == str(snapshot) and hub.asked == []


def test_configured_cache_comes_first(hugging_face, tmp_path, told):
    fill(hugging_face / "hub")
    site = fill(tmp_path / "site")
    source = hub_source.HubSource(REPOSITORY, FIRST)
    assert hub_cache.find(source, FIRST, tmp_path / "site", told) == site
    shutil.rmtree(tmp_path / "site")
    assert hub_cache.find(source, FIRST, tmp_path / "site", told) == hugging_face / "hub" / site.relative_to(tmp_path / "site")


def test_another_commit_is_not_taken(hub, stage, hugging_face):
    hub.commits[SECOND] = {**small_model(), "model.safetensors": tensors(2000)}
    fill(hugging_face / "hub", commit=SECOND)
    assert stage(f"hf:{REPOSITORY}@{FIRST}").parameters == 1000 and "model.safetensors" in hub.fetched()


def test_branch_is_resolved_by_the_hub_and_remembered(hub, stage, hugging_face):
    """The cache's own reference may be old."""
    old, new = fill(hugging_face / "hub", commit=SECOND), fill(hugging_face / "hub", commit=FIRST)
    (old.parents[1] / "refs" / "main").write_text(SECOND)
    found = stage()
    assert (found.path, found.source) == (str(new), f"hf:{REPOSITORY}@main (commit {FIRST})")
    assert hub.fetched() == []
    asked = len(hub.asked)
    assert stage() == found and len(hub.asked) == asked


def test_offline_branch_is_resolved_by_the_cache(hub, stage, hugging_face, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(WeightsRefused) as caught:
        stage()
    assert caught.value.reason == "hub_offline"
    snapshot = fill(hugging_face / "hub")
    found = stage()
    assert (found.path, found.source) == (str(snapshot), f"hf:{REPOSITORY}@main (commit {FIRST})") and hub.asked == []
    with pytest.raises(WeightsRefused):
        stage(f"hf:{REPOSITORY}@v1")


def test_unreachable_hub_leaves_the_branch_to_the_cache(hub, stage, hugging_face):
    hub.faults.append(Fault("/api/models/", 200, body="<html>Please sign in</html>"))
    with pytest.raises(WeightsRefused) as caught:
        stage()
    assert caught.value.reason == "hub_unreachable"
    snapshot = fill(hugging_face / "hub")
    assert stage().path == str(snapshot)


@pytest.fixture
def pauses(monkeypatch) -> list[float]:
    """Return the pauses before further requests."""
    found: list[float] = []
    monkeypatch.setattr(hub_client, "time", SimpleNamespace(sleep=found.append))
    return found


@pytest.mark.parametrize("fault", [None, Fault("/api/models/", 503), Fault("/api/models/", 429)])
def test_cached_commit_of_a_branch_is_used_after_the_first_failed_request(
    hub, stage, hugging_face, told, pauses, monkeypatch, closed_port, fault
):
    if fault:
        hub.faults.append(fault)
    else:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{closed_port}")
    snapshot = fill(hugging_face / "hub")
    for _ in range(2):
        found = stage()
        assert (found.path, found.source, pauses) == (str(snapshot), f"hf:{REPOSITORY}@main (commit {FIRST})", [])
    assert any(FIRST in words and f"{hugging_face / 'hub'} " in words for words in told.words)
    monkeypatch.setenv("HF_ENDPOINT", hub.address)
    hub.faults.clear()
    hub.commits[SECOND], hub.branches["main"] = {**small_model(), "model.safetensors": tensors(2000)}, SECOND
    assert stage().path.endswith(SECOND), "the fallback does not pin the branch"


def test_hub_that_never_responds_leaves_the_branch_to_the_cache(hub, stage, hugging_face, pauses, monkeypatch):
    """A stand-in of a firewall that drops packets: the kernel accepts the connection, and no response comes."""
    monkeypatch.setattr(hub_client, "LISTING_S", 0.2)
    snapshot = fill(hugging_face / "hub")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        assert stage().path == str(snapshot) and pauses == []


def test_without_a_cached_commit_of_the_branch_the_requests_are_repeated(hub, stage, hugging_face, pauses):
    fill(hugging_face / "hub", lacks="tokenizer.json")
    hub.faults.append(Fault("/api/models/", 503, times=2))
    assert stage().source.endswith(f"(commit {FIRST})") and pauses == list(hub_client.PAUSES_S) and "tokenizer.json" in hub.fetched()


@pytest.mark.parametrize("offline", [False, True])
def test_refusal_without_a_network_names_every_folder(hub, stage, hugging_face, tmp_path, monkeypatch, closed_port, offline):
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{closed_port}")
    if offline:
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    site = tmp_path / "absent"
    folders = [tmp_path / "cache" / "models" / "hf", site, hugging_face / "hub"]
    for work in (lambda: stage("hf:acme/Tiny-Lama", site), lambda: shape.read("hf:acme/Tiny-Lama", tmp_path / "cache", site)):
        with pytest.raises(WeightsRefused) as caught:
            work()
        assert caught.value.reason == ("hub_offline" if offline else "hub_unreachable")
        assert [folder for folder in folders if str(folder) not in caught.value.what] == []


@pytest.mark.parametrize("lacks", ["config.json", "tokenizer.json", "model.safetensors"])
def test_incomplete_snapshot_is_named_and_the_model_is_fetched(hub, stage, hugging_face, told, lacks):
    snapshot = fill(hugging_face / "hub", lacks=lacks)
    found = stage(f"hf:{REPOSITORY}@{FIRST}")
    assert found.path != str(snapshot) and lacks in hub.fetched()
    assert any(str(snapshot) in words and "hf download" in words for words in told.words)


def test_list_of_the_cache_tells_that_a_small_file_is_missing(hub, stage, hugging_face, tmp_path, told):
    """A download by the library leaves the list of the commit's files."""
    cache = hugging_face / "hub"
    hub.commits[FIRST]["chat_template.jinja"] = b"{{ messages }}"
    names = ["config.json", "tokenizer.json", "model.safetensors"]
    snapshot = snapshot_download(REPOSITORY, revision=FIRST, cache_dir=cache, endpoint=hub.address, token=False, allow_patterns=names)
    assert stage(f"hf:{REPOSITORY}@{FIRST}").path != snapshot
    assert any(snapshot in words and "chat_template.jinja" in words for words in told.words)
    snapshot_download(REPOSITORY, revision=FIRST, cache_dir=cache, endpoint=hub.address, token=False, allow_patterns=[*names, "*.jinja"])
    shutil.rmtree(tmp_path / "cache")
    assert stage(f"hf:{REPOSITORY}@{FIRST}").path == snapshot


def test_shape_needs_no_weights(hub, stage, hugging_face):
    snapshot = builder.make(hugging_face / "hub")
    (snapshot / "model.safetensors").unlink()
    found = stage(f"{OTHER}@{builder.COMMIT}", dummy=True)
    assert (found.path, found.load_format, hub.asked) == (str(snapshot), "dummy", [])


def test_damaged_blob_of_a_cache_is_refused(hub, stage, hugging_face):
    snapshot = builder.make(hugging_face / "hub")
    stored = (snapshot / "model.safetensors").resolve()
    stored.write_bytes(stored.read_bytes()[:-1] + b"\x7f")
    with pytest.raises(WeightsRefused) as caught:
        stage(f"{OTHER}@{builder.COMMIT}")
    assert caught.value.reason == "blob_differs" and hub.asked == []
