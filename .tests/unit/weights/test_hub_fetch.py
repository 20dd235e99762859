"""Models of the hub, fetched by its real client from a stand-in of the hub on loopback: once, gone on with, checked, then offline."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from builders.standin_hub import Fault, StandinHub, serving, small_model, tensors
from servemark.errors import WeightsRefused
from servemark.weights import builtin, hub_source, staging
from servemark.weights import hub as hub_room
from servemark.weights.hub_client import Patience
from servemark.weights.manifest import verify

REPOSITORY = "org/small-model"
FIRST, SECOND = "1" * 40, "2" * 40
MIB = 2**20
# The client writes 10 MiB at a time: less of an interrupted file is not kept.
CHUNK = 10 * MIB
QUICK = Patience(tries=3, first_s=0.01)


@pytest.fixture
def hub(monkeypatch):
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with serving(StandinHub(REPOSITORY, {FIRST: small_model()}, {"main": FIRST})) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        yield hub


@pytest.fixture
def stage(tmp_path, told):
    def one(revision: str | None = None):
        source = hub_source.parse(f"hf:{REPOSITORY}" + (f"@{revision}" if revision else ""))
        return hub_room.stage("m", source, tmp_path, told, QUICK)

    return one


def home(tmp_path: Path) -> Path:
    return tmp_path / "models" / "hf" / "org--small-model"


def test_a_model_is_fetched_to_its_commit_and_the_hub_is_never_asked_again(hub, stage, tmp_path, told, monkeypatch):
    made = stage()
    assert made.path == str(home(tmp_path) / FIRST) and made.source == f"hf:{REPOSITORY}@main (commit {FIRST})"
    assert (
        hub.fetched()
        == [file.path for file in made.files]
        == ["LICENSE", "config.json", "model.safetensors", "tokenizer.json"]
    )
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


def test_for_random_weights_the_shape_alone_is_fetched(hub, stage, tmp_path, told):
    def shape():
        return staging.stage("m", f"hf:{REPOSITORY}", tmp_path, told, dummy=True)

    hub.commits[FIRST]["config.json"] = builtin_config(tmp_path)
    made = shape()
    assert hub.fetched() == ["LICENSE", "config.json", "tokenizer.json"]
    assert made.path == str(home(tmp_path) / f"{FIRST}-shape") and made.load_format == "dummy"
    assert shape() == made
    # The whole model is another folder, and serves as the shape as well.
    whole = stage()
    assert whole.path == str(home(tmp_path) / FIRST)
    assert shape().model_copy(update={"path": made.path}) == made


def test_the_folder_can_be_copied_to_where_no_hub_is(hub, stage, tmp_path, told, monkeypatch):
    stage()
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "models" / "hf").mkdir(parents=True)
    subprocess.run(["cp", "-r", home(tmp_path), elsewhere / "models" / "hf"], check=True)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    made = staging.stage("m", f"hf:{REPOSITORY}", elsewhere, told)
    assert made.path == str(home(elsewhere) / FIRST)


def test_a_branch_stays_the_commit_that_it_was_until_its_file_is_removed(hub, stage, tmp_path):
    stage()
    hub.commits[SECOND] = {**small_model(), "config.json": b'{"model_type": "llama"}'}
    hub.branches["main"] = SECOND
    assert stage().path.endswith(FIRST)
    reference = home(tmp_path) / ".refs" / "main.json"
    assert json.loads(reference.read_text())["commit"] == FIRST
    reference.unlink()
    assert stage().path.endswith(SECOND) and stage(FIRST).path.endswith(FIRST)


def test_the_shards_that_the_index_names_are_fetched(hub, stage):
    index = {"weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors"}}
    shards = {"m-1.safetensors": tensors(10), "m-2.safetensors": tensors(20)}
    hub.commits[FIRST] |= shards | {"model.safetensors.index.json": json.dumps(index).encode()}
    made = stage()
    assert made.parameters == 30 and "model.safetensors" not in hub.fetched() and "m-2.safetensors" in hub.fetched()


def test_a_connection_that_is_cut_within_a_file_is_gone_on_with(hub, stage):
    content = hub.commits[FIRST]["model.safetensors"] = tensors(12 * MIB)
    hub.faults.append(Fault("/store/", times=1, after=11 * MIB))
    made = stage()
    assert hub.ranges("model.safetensors") == [None, f"bytes={CHUNK}-"]
    assert Path(made.path, "model.safetensors").read_bytes() == content


CHILD = """
import signal, sys
from pathlib import Path
from servemark.run import stage
from servemark.progress import Progress
from servemark.weights import staging
signal.signal(signal.SIGTERM, stage._as_interrupt)
made = staging.stage("m", sys.argv[1], Path(sys.argv[2]), Progress(None, "stage_weights"))
print(made.source)
"""


def child(tmp_path: Path, **env: str) -> subprocess.Popen:
    command = [sys.executable, "-c", CHILD, f"hf:{REPOSITORY}", str(tmp_path)]
    return subprocess.Popen(
        command, env={**os.environ, **env}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_run_is_gone_on_with_and_nothing_looks_finished_before(hub, tmp_path, wait_for, number):
    """In processes of their own: without xet, without anything in the home directory, least of all the token that lies there."""
    content = hub.commits[FIRST]["model.safetensors"] = tensors(12 * MIB)
    hub.faults.append(Fault("/store/", times=1, after=11 * MIB, slow=True))
    hugging_face = tmp_path / "hugging-face"
    hugging_face.mkdir()
    (hugging_face / "token").write_text("hf_of_the_home_directory")
    part = home(tmp_path) / f".{FIRST}" / ".model.safetensors.part"
    first = child(tmp_path, HF_HOME=str(hugging_face))
    try:
        wait_for(lambda: part.exists() and part.stat().st_size >= CHUNK, 60)
        first.send_signal(number)
        first.communicate(timeout=8)
    finally:
        first.kill()
        first.communicate()
    assert not (home(tmp_path) / FIRST).exists()
    second = child(tmp_path, HF_HOME=str(hugging_face))
    said, _ = second.communicate(timeout=120)
    assert second.returncode == 0, said
    assert said.strip() == f"hf:{REPOSITORY}@main (commit {FIRST})"
    assert hub.ranges("model.safetensors") == [None, f"bytes={CHUNK}-"]
    assert (home(tmp_path) / FIRST / "model.safetensors").read_bytes() == content
    assert hub.fetched().count("config.json") == 1, "what was whole is not fetched again"
    assert not part.parent.exists()
    assert {asked.authorization for asked in hub.asked} == {None}
    assert {asked.path.split("/")[1] for asked in hub.asked} == {"api", "org", "store"}
    assert [path.name for path in hugging_face.iterdir()] == ["token"]


def test_a_process_that_may_not_ask_says_the_way_out(hub, tmp_path):
    process = child(tmp_path, HF_HUB_OFFLINE="1")
    said, _ = process.communicate(timeout=120)
    assert process.returncode != 0 and "is not staged" in said and "hf download org/small-model" in said
    assert hub.asked == []


def test_a_part_that_a_disk_has_spoilt_is_fetched_anew(hub, stage, tmp_path):
    draft = home(tmp_path) / f".{FIRST}"
    draft.mkdir(parents=True)
    (draft / ".model.safetensors.part").write_bytes(b"x" * 100)
    stage()
    assert hub.ranges("model.safetensors") == ["bytes=100-", None]


def test_a_part_that_is_longer_than_the_file_is_fetched_anew(hub, stage, tmp_path):
    draft = home(tmp_path) / f".{FIRST}"
    draft.mkdir(parents=True)
    (draft / ".model.safetensors.part").write_bytes(b"x" * 10_000)
    stage()
    assert hub.ranges("model.safetensors") == [None]


def test_a_whole_file_that_a_disk_has_spoilt_is_refused_and_fetched_anew_by_the_next_run(hub, stage, tmp_path):
    draft = home(tmp_path) / f".{FIRST}"
    draft.mkdir(parents=True)
    right = small_model()["model.safetensors"]
    (draft / "model.safetensors").write_bytes(right[:-1] + b"x")
    (draft / "left-over.json").write_text("{}")
    with pytest.raises(WeightsRefused) as refused:
        stage()
    assert refused.value.reason == "hub_digest_differs" and not (home(tmp_path) / FIRST).exists()
    assert "left-over.json" not in [file.path for file in stage().files]


def test_a_model_that_was_changed_in_the_cache_is_refused(hub, stage):
    made = stage()
    Path(made.path, "config.json").write_text("{}")
    with pytest.raises(WeightsRefused, match="not those that were fetched") as refused:
        stage()
    assert refused.value.reason == "weights_changed" and refused.value.look == made.path


def test_two_runs_at_once_fetch_it_once(hub, stage):
    found = []
    threads = [threading.Thread(target=lambda: found.append(stage())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[0] == found[1] and hub.fetched().count("model.safetensors") == 1


def test_the_token_goes_to_the_hub_alone(hub, stage, tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("HF_TOKEN", " hf_secret\n")
    stage()
    assert {asked.authorization for asked in hub.asked if not asked.path.startswith("/store/")} == {"Bearer hf_secret"}
    assert {asked.authorization for asked in hub.asked if asked.path.startswith("/store/")} == {None}
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert written and not any(b"hf_secret" in path.read_bytes() for path in written)
    assert "hf_secret" not in "".join(capfd.readouterr())
