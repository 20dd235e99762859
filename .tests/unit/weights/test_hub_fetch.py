"""Download of a model by huggingface_hub from a stand-in of the hub on loopback: once, resumed, checked, then offline."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from builders.standin_hub import FIRST, REPOSITORY, SECOND, Fault, small_model, tensors
from servemark.errors import WeightsRefused
from servemark.files.storage import StorageRefused
from servemark.weights import builtin, hub_client, hub_source, staging
from servemark.weights.manifest import verify

MIB = 2**20
# The client writes 10 MiB at a time.
CHUNK = 10 * MIB


@pytest.fixture
def stage(tmp_path, told):
    def one(revision: str | None = None):
        source = hub_source.parse(f"hf:{REPOSITORY}" + (f"@{revision}" if revision else ""))
        return staging.stage_hub("m", source, tmp_path, told)

    return one


def home(tmp_path: Path) -> Path:
    return tmp_path / "models" / "hf" / "org--small-model"


def test_model_is_downloaded_to_its_commit_and_then_used_offline(hub, stage, tmp_path, told, monkeypatch):
    made = stage()
    assert made.path == str(home(tmp_path) / FIRST) and made.source == f"hf:{REPOSITORY}@main (commit {FIRST})"
    assert hub.fetched() == [file.path for file in made.files] == ["LICENSE", "config.json", "model.safetensors", "tokenizer.json"]
    assert (made.parameters, made.weight_bytes) == (1000, 1000)
    verify(made)
    asked = len(hub.asked)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert stage() == made == stage("main")
    assert stage(FIRST).source == f"hf:{REPOSITORY}@{FIRST}"
    assert staging.stage("m", f"hf:{REPOSITORY}", tmp_path, told) == made
    assert len(hub.asked) == asked
    assert {path.name for path in home(tmp_path).iterdir()} == {FIRST, ".refs", ".lock"}


def builtin_config(tmp_path: Path) -> bytes:
    builtin.make("tiny-dense", tmp_path / "builtin")
    return (tmp_path / "builtin" / "config.json").read_bytes()


def test_random_weights_download_the_shape_only(hub, stage, tmp_path, told):
    def shape():
        return staging.stage("m", f"hf:{REPOSITORY}", tmp_path, told, dummy=True)

    hub.commits[FIRST]["config.json"] = builtin_config(tmp_path)
    made = shape()
    assert hub.fetched() == ["LICENSE", "config.json", "tokenizer.json"]
    assert made.path == str(home(tmp_path) / f"{FIRST}-shape") and made.load_format == "dummy"
    assert shape() == made
    # The whole model is another folder, and also provides the shape.
    whole = stage()
    assert whole.path == str(home(tmp_path) / FIRST)
    assert shape().model_copy(update={"path": made.path}) == made


def test_folder_can_be_copied_to_an_offline_machine(hub, stage, tmp_path, told, monkeypatch):
    stage()
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "models" / "hf").mkdir(parents=True)
    subprocess.run(["cp", "-r", home(tmp_path), elsewhere / "models" / "hf"], check=True)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    made = staging.stage("m", f"hf:{REPOSITORY}", elsewhere, told)
    assert made.path == str(home(elsewhere) / FIRST)


def test_branch_keeps_its_commit_until_its_file_is_removed(hub, stage, tmp_path):
    stage()
    hub.commits[SECOND] = {**small_model(), "config.json": b'{"model_type": "llama"}'}
    hub.branches["main"] = SECOND
    assert stage().path.endswith(FIRST)
    reference = home(tmp_path) / ".refs" / "main.json"
    assert json.loads(reference.read_text())["commit"] == FIRST
    reference.unlink()
    assert stage().path.endswith(SECOND) and stage(FIRST).path.endswith(FIRST)


def test_only_the_shards_of_the_index_are_downloaded(hub, stage):
    index = {"weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors"}}
    shards = {"m-1.safetensors": tensors(10), "m-2.safetensors": tensors(20)}
    hub.commits[FIRST] |= shards | {"model.safetensors.index.json": json.dumps(index).encode()}
    made = stage()
    assert made.parameters == 30 and "model.safetensors" not in hub.fetched() and "m-2.safetensors" in hub.fetched()


def test_truncated_index_of_an_interrupted_run_is_downloaded_again(hub, stage, tmp_path):
    index = {"weight_map": {"a": "m-1.safetensors"}}
    hub.commits[FIRST] |= {"m-1.safetensors": tensors(10), "model.safetensors.index.json": json.dumps(index).encode()}
    hub.faults.append(Fault("/m-1.safetensors", 403))
    with pytest.raises(WeightsRefused):
        stage()
    hub.faults.clear()
    path = home(tmp_path) / f".{FIRST}" / "model.safetensors.index.json"
    times = path.stat()
    path.write_bytes(b"")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert stage().parameters == 10


def test_incomplete_download_without_an_error_of_the_client_is_refused(hub, stage, tmp_path):
    draft = home(tmp_path) / f".{FIRST}"
    draft.mkdir(parents=True)
    (draft / "config.json").write_bytes(hub.commits[FIRST]["config.json"])
    hub.faults.append(Fault("/tree/", 403))
    with pytest.raises(WeightsRefused) as refused:
        stage()
    assert refused.value.reason == "hub_unreachable" and not (home(tmp_path) / FIRST).exists()
    hub.faults.clear()
    verify(stage())


def test_file_name_with_brackets_is_downloaded(hub, stage):
    hub.commits[FIRST]["terms [v1].txt"] = b"free"
    assert "terms [v1].txt" in [file.path for file in stage().files]


def test_broken_connection_resumes_the_file(hub, stage):
    content = hub.commits[FIRST]["model.safetensors"] = tensors(12 * MIB)
    hub.faults.append(Fault("/store/", times=1, after=11 * MIB))
    made = stage()
    assert hub.ranges("model.safetensors") == [None, f"bytes={CHUNK}-"]
    assert Path(made.path, "model.safetensors").read_bytes() == content


CHILD = """
import signal, sys
from pathlib import Path
from servemark.progress import Progress
from servemark.weights import staging
signal.signal(signal.SIGTERM, signal.default_int_handler)
made = staging.stage("m", sys.argv[1], Path(sys.argv[2]), Progress(None, "stage_weights"))
print(made.source)
"""


def child(tmp_path: Path, **env: str) -> subprocess.Popen:
    command = [sys.executable, "-c", CHILD, f"hf:{REPOSITORY}", str(tmp_path)]
    return subprocess.Popen(command, env={**os.environ, **env}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def home_directory(tmp_path: Path) -> Path:
    """Make huggingface_hub's folder of a home directory, with a token and a cache that holds a damaged file of the model."""
    folder = tmp_path / "hugging-face"
    snapshot = folder / "hub" / "models--org--small-model" / "snapshots" / FIRST
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("damaged")
    (folder / "token").write_text("hf_of_the_home_directory")
    return folder


def size(path: Path) -> int:
    """Return a file's size, or 0 if the download has renamed it since it was listed."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_next_run_keeps_the_complete_files_of_a_killed_one(hub, tmp_path, wait_for, number):
    """Each run is a process of its own. Neither uses xet. Of the home directory, both use the login and no damaged file."""
    content = hub.commits[FIRST]["model.safetensors"] = tensors(12 * MIB)
    hub.faults.append(Fault("/store/", times=1, after=11 * MIB, slow=True))
    hugging_face = home_directory(tmp_path)
    before = sorted(hugging_face.rglob("*"))
    draft = home(tmp_path) / f".{FIRST}"

    def parts() -> list[Path]:
        return [path for path in draft.rglob("*.incomplete") if size(path) >= CHUNK]

    small = ("LICENSE", "config.json", "tokenizer.json")
    first = child(tmp_path, HF_HOME=str(hugging_face))
    try:
        wait_for(lambda: parts() and all((draft / name).exists() for name in small), 180)
        first.send_signal(number)
        first.communicate(timeout=40)  # the hub ends the connection after a minute
    finally:
        first.kill()
        first.communicate()
    assert first.returncode == (130 if number == signal.SIGTERM else -signal.SIGKILL)
    assert not (home(tmp_path) / FIRST).exists()
    second = child(tmp_path, HF_HOME=str(hugging_face))
    said, _ = second.communicate(timeout=240)
    assert second.returncode == 0, said
    assert said.strip() == f"hf:{REPOSITORY}@main (commit {FIRST})"
    # As docs/explanation/architecture.md states: an incomplete file is downloaded from its beginning.
    assert hub.ranges("model.safetensors") == [None, None]
    assert [hub.fetched().count(name) for name in small] == [1, 1, 1]
    assert (home(tmp_path) / FIRST / "model.safetensors").read_bytes() == content
    assert not draft.exists() and not (home(tmp_path) / FIRST / ".cache").exists()
    tokens = {asked.path.startswith("/store/"): asked.authorization for asked in hub.asked}
    assert tokens == {False: "Bearer hf_of_the_home_directory", True: None}
    assert {asked.path.split("/")[1] for asked in hub.asked} == {"api", "org", "store"}
    assert {asked.path.split("/")[2] for asked in hub.asked if asked.path.startswith("/api")} == {"models"}
    assert sorted(hugging_face.rglob("*")) == before


def test_process_that_is_offline_refuses_without_a_request(hub, tmp_path):
    process = child(tmp_path, HF_HUB_OFFLINE="1")
    said, _ = process.communicate(timeout=240)
    assert process.returncode != 0 and "HF_HUB_OFFLINE" in said
    assert hub.asked == []


def test_draft_is_tidied_before_the_download(tmp_path):
    cache = tmp_path / ".cache" / "huggingface" / "download"
    cache.mkdir(parents=True)
    kept = [tmp_path / "whole.json", cache / "whole.json.metadata"]
    removed = [
        tmp_path / "short.json", tmp_path / "other.json", tmp_path / ".whole.json.part", cache / "x.0123.incomplete",
    ]  # fmt: skip
    for path in (*kept, *removed):
        path.write_bytes(b"1234")
    assert staging._tidy(tmp_path, {"whole.json": 4, "short.json": 5}) == 4
    assert all(path.exists() for path in kept) and not any(path.exists() for path in removed)


def test_model_of_the_earlier_version_is_found_offline(hub, stage, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    folder = home(tmp_path) / FIRST
    folder.mkdir(parents=True)
    chosen = {name: hub.commits[FIRST][name] for name in ("LICENSE", "config.json", "model.safetensors", "tokenizer.json")}
    for name, content in chosen.items():
        (folder / name).write_bytes(content)
    files = [{"path": n, "size": len(c), "sha256": hashlib.sha256(c).hexdigest()} for n, c in chosen.items()]
    (folder / ".servemark-hub.json").write_text(json.dumps({"repository": REPOSITORY, "commit": FIRST, "files": files}))
    (home(tmp_path) / ".refs").mkdir()
    (home(tmp_path) / ".refs" / "main.json").write_text(json.dumps({"revision": "main", "commit": FIRST}))
    assert stage().path == stage(FIRST).path == str(folder)
    assert hub.asked == []


def test_draft_of_the_earlier_version_is_continued(hub, stage, tmp_path):
    draft = home(tmp_path) / f".{FIRST}"
    draft.mkdir(parents=True)
    (draft / "model.safetensors").write_bytes(hub.commits[FIRST]["model.safetensors"])
    (draft / ".tokenizer.json.part").write_bytes(b"{")
    (draft / "left-over.json").write_text("{}")
    made = stage()
    assert hub.fetched() == ["LICENSE", "config.json", "tokenizer.json"]
    hidden = [path.name for path in Path(made.path).iterdir() if path.name.startswith(".")]
    assert hidden == [".servemark-hub.json"]
    assert "left-over.json" not in [file.path for file in made.files]


def test_damaged_file_of_interrupted_run_is_refused_then_downloaded_again(hub, stage, tmp_path):
    hub.faults.append(Fault("/config.json", 403))
    weights = home(tmp_path) / f".{FIRST}" / "model.safetensors"
    # The library downloads several files at once. On a busy machine the refusal may come before the weights.
    for _ in range(50):
        with pytest.raises(WeightsRefused) as refused:
            stage()
        assert refused.value.reason == "hub_forbidden"
        if weights.exists():
            break
    times = weights.stat()
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    # Like a disk that loses confirmed writes.
    os.utime(weights, ns=(times.st_atime_ns, times.st_mtime_ns))
    hub.faults.clear()
    with pytest.raises(WeightsRefused) as refused:
        stage()
    assert refused.value.reason == "hub_digest_differs" and not (home(tmp_path) / FIRST).exists()
    assert not weights.exists()
    verify(stage())


def test_draft_can_be_continued_by_another_user_of_the_group(hub, stage, tmp_path):
    hub.faults.append(Fault("/config.json", 403))
    before = os.umask(0o002)
    try:
        with pytest.raises(WeightsRefused):
            stage()
    finally:
        os.umask(before)
    # Replacing a file takes the right to write in its folder.
    opened = [path for path in home(tmp_path).rglob("*") if path.is_dir() or path.suffix == ".lock"]
    assert len(opened) > 5
    assert [path for path in opened if not path.stat().st_mode & 0o020] == []


def test_full_disk_during_the_download_is_refused_with_its_reason(hub, stage, tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(hub_client, "snapshot_download", full)
    with pytest.raises(StorageRefused) as refused:
        stage()
    assert refused.value.reason == "disk_full" and str(tmp_path) in refused.value.what


def test_changed_model_in_the_cache_is_refused(hub, stage):
    made = stage()
    Path(made.path, "config.json").write_text("{}")
    with pytest.raises(WeightsRefused) as refused:
        stage()
    assert refused.value.reason == "weights_changed" and refused.value.look == made.path


def test_two_runs_at_once_download_once(hub, stage):
    found = []
    threads = [threading.Thread(target=lambda: found.append(stage())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[0] == found[1] and hub.fetched().count("model.safetensors") == 1


def test_token_is_sent_to_the_hub_only(hub, stage, tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("HF_TOKEN", " hf_secret\n")
    stage()
    assert {asked.authorization for asked in hub.asked if not asked.path.startswith("/store/")} == {"Bearer hf_secret"}
    assert {asked.authorization for asked in hub.asked if asked.path.startswith("/store/")} == {None}
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert written and not any(b"hf_secret" in path.read_bytes() for path in written)
    assert "hf_secret" not in "".join(capfd.readouterr())
