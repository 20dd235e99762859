"""What a user is told when the hub, the way to it or the disk refuses; asked by the real client of a stand-in of the hub."""

from __future__ import annotations

import socket

import pytest

from builders.standin_hub import Fault, StandinHub, serving, small_model, tensors
from servemark.errors import WeightsRefused
from servemark.files import storage
from servemark.files.storage import CacheClosed
from servemark.weights import hub as hub_room
from servemark.weights import hub_source
from servemark.weights.hub_client import Patience

REPOSITORY = "org/small-model"
COMMIT = "1" * 40
QUICK = Patience(tries=3, first_s=0.01)
LISTING, FILE, STORE = "/api/models/", "/resolve/", "/store/"
GATED = {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access to model org/small-model is restricted."}
NO_TOKEN = {"X-Error-Message": "Invalid credentials in Authorization header"}


@pytest.fixture
def hub(monkeypatch):
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with serving(StandinHub(REPOSITORY, {COMMIT: small_model()}, {"main": COMMIT})) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        yield hub


@pytest.fixture
def refused(tmp_path, told):
    """Stage a model that is refused: nothing then looks finished, and every message has its three parts."""

    def one(text: str = f"hf:{REPOSITORY}") -> WeightsRefused:
        source = hub_source.parse(text)
        with pytest.raises(WeightsRefused) as caught:
            hub_room.stage("m", source, tmp_path, told, QUICK)
        assert caught.value.what and caught.value.look and caught.value.do
        home = tmp_path / "models" / "hf" / source.folder
        assert not [path for path in home.glob("*") if not path.name.startswith(".")]
        return caught.value

    return one


@pytest.mark.parametrize(
    ("fault", "token", "reason", "what", "do"),
    [
        (Fault(FILE, 401, headers=GATED), None, "hub_gated", "HF_TOKEN is not set", "Accept its licence"),
        (Fault(FILE, 403, headers=GATED), "hf_mine", "hub_gated", "has no access to it yet", "export HF_TOKEN"),
        (Fault(LISTING, 401, headers=NO_TOKEN), "hf_old", "hub_unauthorised", "does not take HF_TOKEN", "another token"),
        (Fault(LISTING, 401), None, "hub_repository_missing", "everybody may see", "If it is private: export HF_TOKEN"),
        (Fault(LISTING, 404, headers={"X-Error-Code": "RepoNotFound"}), "hf_mine", "hub_repository_missing",
         "this account may see", "spelling"),
        (Fault(FILE, 403, body='{"error": "no scope"}'), "hf_fine", "hub_forbidden", "403: no scope", "fine-grained"),
        (Fault(FILE, 404, headers={"X-Error-Code": "EntryNotFound"}), None, "hub_file_missing", "does not have", "Run again"),
        (Fault(LISTING, 429, body="slow down"), None, "hub_busy", "slow down); asked 3 times", "Wait some minutes"),
        (Fault(LISTING, 503), None, "hub_out_of_order", "(503); asked 3 times", "Run again later"),
        (Fault(STORE, 500), None, "hub_out_of_order", "(500); asked 3 times", "goes on from there"),
        (Fault(LISTING, 451, body="not here"), None, "hub_refused", "451: not here", "Run again later"),
        (Fault(LISTING, 200, body="<html>Please sign in</html>"), None, "hub_unreachable", "is no hub", "HTTPS_PROXY"),
        (Fault(LISTING, 200, body='{"sha": "main", "siblings": []}'), None, "hub_unreachable", "is no hub", "HF_ENDPOINT"),
    ],
)  # fmt: skip
def test_an_answer_of_the_hub_is_told_with_what_to_do(hub, refused, monkeypatch, fault, token, reason, what, do):
    if token:
        monkeypatch.setenv("HF_TOKEN", token)
    hub.faults.append(fault)
    error = refused()
    assert error.reason == reason
    assert what in error.what and do in error.do, error.message()
    assert hub.address in error.look and (not token or token not in error.message())
    assert "signed-for-you" not in error.message()


def test_a_gated_model_is_fetched_with_the_token_of_an_account_that_may(hub, refused, tmp_path, told, monkeypatch):
    hub.faults.append(Fault(FILE, 401, headers=GATED, unless_token="hf_mine"))
    assert f"{hub.address}/{REPOSITORY}" == refused().look
    monkeypatch.setenv("HF_TOKEN", "hf_mine")
    assert hub_room.stage("m", hub_source.parse(f"hf:{REPOSITORY}"), tmp_path, told, QUICK).files


def test_another_model_and_another_revision(hub, refused):
    assert refused("hf:org/other").reason == "hub_repository_missing"
    for revision in ("v9", "9" * 40):
        error = refused(f"hf:{REPOSITORY}@{revision}")
        assert error.reason == "hub_revision_missing" and f"no revision '{revision}'" in error.what
        assert error.look.endswith("/tree/main")


@pytest.mark.parametrize(
    "fault",
    [
        Fault(LISTING, 503, times=2),
        Fault(LISTING, 429, times=2),
        Fault("/config.json", 502, times=2),
        Fault(STORE, 504, times=2),
        Fault("/store/", 429, times=1, headers={"Retry-After": "0"}),
    ],
)
def test_what_passes_is_waited_for(hub, tmp_path, told, fault):
    hub.faults.append(fault)
    made = hub_room.stage("m", hub_source.parse(f"hf:{REPOSITORY}"), tmp_path, told, QUICK)
    assert len(made.files) == 4 and fault.times == 0
    if fault.status != 429 or fault.on == LISTING:
        assert any("did not answer as it should (2 of 3)" in words for words in told.words)


@pytest.mark.parametrize(("path", "kind"), [("model.safetensors", "sha256"), ("config.json", "git sha1")])
def test_another_content_than_the_hub_states_is_refused_and_nothing_of_it_is_left(hub, refused, tmp_path, path, kind):
    hub.digests[path] = "a" * (64 if kind == "sha256" else 40)
    error = refused()
    assert (
        error.reason == "hub_digest_differs"
        and f"{path} of {REPOSITORY}" in error.what
        and f"its {kind} is" in error.what
    )
    assert not [there for there in tmp_path.rglob("*") if path in there.name]


def test_another_length_than_the_hub_states_is_refused(hub, refused, tmp_path):
    hub.sizes["model.safetensors"] = len(hub.commits[COMMIT]["model.safetensors"]) - 5
    assert refused().reason == "hub_digest_differs"
    assert not [there for there in tmp_path.rglob("*") if "model.safetensors" in there.name]


def test_room_is_looked_for_before_anything_is_fetched(hub, refused):
    shards = {f"part-{number}.safetensors": b"" for number in range(1000)}
    hub.commits[COMMIT] = {**{k: v for k, v in small_model().items() if k != "model.safetensors"}, **shards}
    hub.sizes.update(dict.fromkeys(shards, 49_000_000_000))
    error = refused()
    assert (
        error.reason == "disk_full"
        and "needs 45,634.8 GiB more on the disk, and " in error.what
        and "are free" in error.what
    )
    assert hub.fetched() == []


def test_a_file_that_plain_http_does_not_give_is_refused_with_the_other_way(hub, refused, tmp_path, told):
    hub.sizes["model.safetensors"] = 50_000_000_001
    with pytest.raises(WeightsRefused) as caught:
        hub_room.stage("m", hub_source.parse(f"hf:{REPOSITORY}"), tmp_path, told, QUICK)
    assert caught.value.reason == "hub_file_too_large" and f"--revision {COMMIT} --local-dir DIR" in caught.value.do


def test_a_checkpoint_that_cannot_be_served_is_fetched_and_stays_a_draft(hub, refused):
    hub.commits[COMMIT]["model.safetensors"] = tensors(1000) + b"more"
    assert refused().reason == "weights_truncated"


def test_a_hub_that_cannot_be_reached(hub, refused, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    monkeypatch.setenv("HF_ENDPOINT", f"http://user:password@127.0.0.1:{port}")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    error = refused()
    assert error.reason == "hub_unreachable" and "refused" in error.what and "tried 3 times" in error.what
    assert error.look == f"http://127.0.0.1:{port}" and "stage_on: login" in error.do
    assert "password" not in error.message()


def test_an_endpoint_that_is_no_address(hub, tmp_path, told, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "hub.example")
    with pytest.raises(WeightsRefused, match="HF_ENDPOINT is no address"):
        hub_room.stage("m", hub_source.parse(f"hf:{REPOSITORY}"), tmp_path, told, QUICK)


def test_in_a_job_the_token_s_way_out_is_another(hub, refused, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    hub.faults.append(Fault(FILE, 401, headers=GATED))
    assert "Jobs do not get it: write `stage_on: login`" in refused().do


def test_a_token_that_is_none_is_refused_unshown(hub, tmp_path, told, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_one\nhf_two")
    with pytest.raises(WeightsRefused) as caught:
        hub_room.stage("m", hub_source.parse(f"hf:{REPOSITORY}"), tmp_path, told, QUICK)
    assert "hf_one" not in caught.value.message() and hub.asked == []


def test_a_server_that_repeats_the_token_does_not_bring_it_into_the_message(hub, refused, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    hub.faults.append(Fault(LISTING, 403, body="hf_secret may not"))
    assert "403: *** may not" in refused().what


@pytest.mark.parametrize("variable", ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"])
def test_a_hub_that_may_not_be_asked(hub, refused, tmp_path, monkeypatch, variable):
    monkeypatch.setenv(variable, "1")
    error = refused()
    assert error.reason == "hub_offline" and hub.asked == []
    assert error.look == str(tmp_path / "models" / "hf" / "org--small-model")
    assert "login node" in error.do and "copy that run's folder models/hf/org--small-model" in error.do


@pytest.mark.parametrize(
    ("count", "text"), [(5, "5 bytes"), (2048, "2.0 KiB"), (3 * 2**20, "3.0 MiB"), (2**40, "1,024.0 GiB")]
)
def test_sizes_for_people(count, text):
    assert storage.size(count) == text


def test_a_cache_that_takes_nothing_is_refused_with_the_way_out(tmp_path, told):
    (tmp_path / "cache").write_text("no folder")
    with pytest.raises(CacheClosed, match="Nothing can be written in") as refused:
        hub_room.stage("x", hub_source.HubSource("org/name"), tmp_path / "cache", told)
    assert refused.value.reason == "cache_not_writable" and "`cache`" in str(refused.value)
