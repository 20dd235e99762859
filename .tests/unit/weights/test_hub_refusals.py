"""Errors of the hub, the network and the disk: reason, place and remedy. huggingface_hub talks to a stand-in of the hub."""

from __future__ import annotations

import socket

import pytest

from builders.standin_hub import FIRST, REPOSITORY, Fault, small_model, tensors
from servemark.errors import WeightsRefused
from servemark.files import storage
from servemark.files.storage import CacheClosed
from servemark.weights import hub_source, staging

LISTING, FILE, STORE = "/api/models/", "/resolve/", "/store/"
GATED = {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access to model org/small-model is restricted."}
NO_TOKEN = {"X-Error-Message": "Invalid credentials in Authorization header"}


@pytest.fixture
def refused(tmp_path, told):
    """Stage a refused model; check that no folder looks finished and that the message has its three parts."""

    def one(text: str = f"hf:{REPOSITORY}") -> WeightsRefused:
        source = hub_source.parse(text)
        with pytest.raises(WeightsRefused) as caught:
            staging.stage_hub("m", source, tmp_path, told)
        assert caught.value.what and caught.value.look and caught.value.do
        home = tmp_path / "models" / "hf" / source.folder
        assert not [path for path in home.glob("*") if not path.name.startswith(".")]
        return caught.value

    return one


@pytest.mark.parametrize(
    ("fault", "token", "reason", "words"),
    [
        (Fault(FILE, 401, headers=GATED), None, "hub_gated", "HF_TOKEN is not set"),
        (Fault(FILE, 403, headers=GATED), "hf_mine", "hub_gated", "HF_TOKEN is set"),
        (Fault(LISTING, 401, headers=NO_TOKEN), "hf_old", "hub_unauthorised", "HF_TOKEN"),
        (Fault(LISTING, 401), None, "hub_repository_missing", "HF_TOKEN is not set"),
        (Fault(LISTING, 404, headers={"X-Error-Code": "RepoNotFound"}), "hf_mine", "hub_repository_missing", REPOSITORY),
        (Fault(FILE, 403, headers={"X-Error-Message": "no scope"}), "hf_fine", "hub_forbidden", "403 no scope"),
        (Fault(FILE, 404, headers={"X-Error-Code": "EntryNotFound"}), None, "hub_file_missing", "404"),
        (Fault(LISTING, 429, body="slow down"), None, "hub_busy", "429 slow down"),
        (Fault(LISTING, 503), None, "hub_out_of_order", "503"),
        (Fault(STORE, 500), None, "hub_out_of_order", "500"),
        (Fault(LISTING, 451, body="not here"), None, "hub_refused", "451 not here"),
        (Fault(LISTING, 400, body="bad"), None, "hub_refused", "400 bad"),
        (Fault(LISTING, 200, body="<html>Please sign in</html>"), None, "hub_unreachable", "HTTPS_PROXY"),
        (Fault(LISTING, 200, body='{"id": "a/b", "sha": "main", "siblings": []}'), None, "hub_unreachable", "HF_ENDPOINT"),
        (Fault(LISTING, 200, body="[]"), None, "hub_unreachable", "HF_ENDPOINT"),
        (Fault("/tree/", 200, body="<html>"), None, "hub_unreachable", "HF_ENDPOINT"),
        (Fault(FILE, 200, body="<html>"), None, "hub_unreachable", "HF_ENDPOINT"),
    ],
)  # fmt: skip
def test_response_of_the_hub_gives_a_reason(hub, refused, monkeypatch, fault, token, reason, words):
    if token:
        monkeypatch.setenv("HF_TOKEN", token)
    hub.faults.append(fault)
    error = refused()
    assert error.reason == reason
    assert words in error.message()
    assert error.look == f"{hub.address}/{REPOSITORY}" and (not token or token not in error.message())
    assert "signed-for-you" not in error.message()


def test_gated_model_is_downloaded_with_a_token_that_has_access(hub, refused, tmp_path, told, monkeypatch):
    hub.faults.append(Fault(FILE, 401, headers=GATED, unless_token="hf_mine"))
    assert f"{hub.address}/{REPOSITORY}" == refused().look
    monkeypatch.setenv("HF_TOKEN", "hf_mine")
    assert staging.stage_hub("m", hub_source.parse(f"hf:{REPOSITORY}"), tmp_path, told).files


def test_missing_model_and_missing_revision_are_refused(hub, refused):
    assert refused("hf:org/other").reason == "hub_repository_missing"
    for revision in ("v9", "9" * 40):
        error = refused(f"hf:{REPOSITORY}@{revision}")
        assert error.reason == "hub_revision_missing" and revision in error.what


@pytest.mark.parametrize(
    ("fault", "tries"),
    [
        (Fault(LISTING, 503, times=2), 2),
        (Fault(LISTING, 429, times=2), 2),
        (Fault(STORE, 504, times=2), 2),
        # The client itself tries these again.
        (Fault("/config.json", 502, times=2), 0),
        (Fault("/tree/", 503, times=1), 0),
        (Fault(STORE, 429, times=1, headers={"Retry-After": "0"}), 0),
    ],
)
def test_passing_faults_are_tried_again(hub, tmp_path, told, fault, tries):
    hub.faults.append(fault)
    made = staging.stage_hub("m", hub_source.parse(f"hf:{REPOSITORY}"), tmp_path, told)
    assert len(made.files) == 4 and fault.times == 0
    assert len([words for words in told.words if " again " in words]) == tries


@pytest.mark.parametrize(("path", "digits"), [("model.safetensors", 64), ("config.json", 40)])
def test_file_with_another_digest_is_refused_and_removed(hub, refused, tmp_path, path, digits):
    hub.digests[path] = "a" * digits
    error = refused()
    assert error.reason == "hub_digest_differs" and path in error.what
    assert not [there for there in tmp_path.rglob("*") if there.name == path]


def test_file_with_another_length_is_refused_and_removed(hub, refused, tmp_path):
    hub.sizes["model.safetensors"] = len(hub.commits[FIRST]["model.safetensors"]) - 5
    assert refused().reason == "hub_digest_differs"
    assert not [there for there in tmp_path.rglob("*") if there.name == "model.safetensors"]


def test_disk_space_is_checked_before_the_download(hub, refused):
    shards = {f"part-{number}.safetensors": b"" for number in range(1000)}
    hub.commits[FIRST] = {**{k: v for k, v in small_model().items() if k != "model.safetensors"}, **shards}
    hub.sizes.update(dict.fromkeys(shards, 49_000_000_000))
    error = refused()
    assert error.reason == "disk_full" and "45,634.8 GiB needed" in error.what
    assert hub.fetched() == []


def test_file_above_limit_of_plain_http_is_refused_before_download(hub, refused):
    hub.sizes["model.safetensors"] = 50_000_000_001
    error = refused()
    assert error.reason == "hub_file_too_large" and f"--revision {FIRST} --local-dir DIR" in error.do
    assert hub.fetched() == []


def test_truncated_checkpoint_of_the_hub_stays_a_draft(hub, refused):
    hub.commits[FIRST]["model.safetensors"] = tensors(1000) + b"more"
    assert refused().reason == "weights_truncated"


def test_unreachable_hub_is_refused_without_showing_the_password(hub, refused, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    monkeypatch.setenv("HF_ENDPOINT", f"http://user:password@127.0.0.1:{port}")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    error = refused()
    assert error.reason == "hub_unreachable" and "refused" in error.what
    assert error.look == f"http://127.0.0.1:{port}/{REPOSITORY}" and "stage_on: login" in error.do
    assert "password" not in error.message()


def test_endpoint_without_scheme_is_refused(hub, refused, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "hub.example")
    error = refused()
    assert error.reason == "hub_unreachable" and "HF_ENDPOINT" in error.do


def test_refusals_in_a_job_name_stage_on(hub, refused, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    hub.faults.append(Fault(FILE, 401, headers=GATED))
    assert "stage_on: login" in refused().do


def test_malformed_token_is_refused_without_showing_it(hub, tmp_path, told, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_one\nhf_two")
    with pytest.raises(WeightsRefused) as caught:
        staging.stage_hub("m", hub_source.parse(f"hf:{REPOSITORY}"), tmp_path, told)
    assert caught.value.reason == "hub_unauthorised"
    assert "hf_one" not in caught.value.message() and hub.asked == []


def test_token_in_a_response_is_redacted(hub, refused, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    hub.faults.append(Fault(LISTING, 403, body="hf_secret may not"))
    error = refused()
    assert "***" in error.what and "hf_secret" not in error.message()


@pytest.mark.parametrize("variable", ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"])
def test_offline_mode_refuses_without_a_request(hub, refused, tmp_path, monkeypatch, variable):
    monkeypatch.setenv(variable, "1")
    error = refused()
    assert error.reason == "hub_offline" and hub.asked == []
    assert error.look == str(tmp_path / "models" / "hf" / "org--small-model")
    assert f"hf download {REPOSITORY} --revision main" in error.do


@pytest.mark.parametrize(("count", "text"), [(5, "5 bytes"), (2048, "2.0 KiB"), (3 * 2**20, "3.0 MiB"), (2**40, "1,024.0 GiB")])
def test_size_is_written_with_a_binary_unit(count, text):
    assert storage.size(count) == text


def test_cache_that_is_not_writable_is_refused(tmp_path, told):
    (tmp_path / "cache").write_text("no folder")
    with pytest.raises(CacheClosed) as refused:
        staging.stage_hub("x", hub_source.HubSource("org/name"), tmp_path / "cache", told)
    assert refused.value.reason == "cache_not_writable" and "`cache`" in str(refused.value)
