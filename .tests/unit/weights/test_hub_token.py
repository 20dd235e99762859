"""The token for the hub: HF_TOKEN, else the stored login; and the sentence that says which."""

from __future__ import annotations

from pathlib import Path

import pytest

from builders.standin_hub import REPOSITORY, Fault
from servemark.errors import WeightsRefused
from servemark.weights import hub_token, staging

LOGIN = "hf_of_the_login"


@pytest.fixture
def login(hugging_face) -> Path:
    path = hugging_face / "token"
    path.write_text(f"{LOGIN}\n")
    return path


def test_stored_login_is_used_without_the_variable(login, monkeypatch):
    found = hub_token.find()
    assert found.text == LOGIN and str(login) in found.origin and LOGIN not in found.origin
    monkeypatch.setenv("HF_TOKEN", "hf_mine")
    assert hub_token.find() == ("hf_mine", "HF_TOKEN is set.")


@pytest.mark.parametrize("why", ["none", "unreadable", "not text", "forbidden"])
def test_reason_for_no_token_is_stated(login, monkeypatch, why):
    login.unlink()
    if why == "unreadable":  # root reads any file
        login.mkdir()
    elif why == "not text":
        login.write_bytes(b"\xff\xfe\x00")
    elif why == "forbidden":
        login.write_text(LOGIN)
        monkeypatch.setenv("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")
    found = hub_token.find()
    assert found.text == "" and "HF_TOKEN is not set" in found.origin and str(login) in found.origin
    assert ("HF_HUB_DISABLE_IMPLICIT_TOKEN" in found.origin) == (why == "forbidden")


def test_login_reaches_the_hub_and_no_file(hub, login, tmp_path, told, capfd):
    staging.stage("m", f"hf:{REPOSITORY}", tmp_path, told)
    sent = {asked.path.startswith("/store/"): asked.authorization for asked in hub.asked}
    assert sent == {False: f"Bearer {LOGIN}", True: None}
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert written and not any(LOGIN.encode() in path.read_bytes() for path in written)
    assert LOGIN not in "".join(capfd.readouterr())


def test_refusal_names_the_login_and_does_not_show_it(hub, login, tmp_path, told):
    hub.faults.append(Fault("/api/models/", 401, body=f"{LOGIN} has expired", headers={"X-Error-Message": f"{LOGIN} has expired"}))
    with pytest.raises(WeightsRefused) as caught:
        staging.stage("m", f"hf:{REPOSITORY}", tmp_path, told)
    assert caught.value.reason == "hub_unauthorised" and str(login) in str(caught.value.do)
    assert LOGIN not in caught.value.message() and "***" in caught.value.what


def test_stored_login_is_known_to_searches(hugging_face):
    assert hub_token.stored() == {}
    (hugging_face / "token").write_text(f"{LOGIN}\n")
    assert list(hub_token.stored()) == [LOGIN]
