"""Fixtures of the tests of the hub."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from builders.standin_hub import FIRST, REPOSITORY, StandinHub, serving, small_model
from servemark.weights import hub_client


@pytest.fixture
def hugging_face(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty folder in place of ``~/.cache/huggingface``, with no token in the environment."""
    home = tmp_path_factory.mktemp("home")
    folder = home / ".cache" / "huggingface"
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_OIDC_RESOURCE", "HF_HUB_DISABLE_IMPLICIT_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(home))
    # As the library sets them when it is imported.
    for name, path in {"HF_HOME": "", "HF_HUB_CACHE": "hub", "HF_TOKEN_PATH": "token", "HF_STORED_TOKENS_PATH": "stored_tokens"}.items():
        monkeypatch.setattr(constants, name, str(folder / path))
    (folder / "hub").mkdir(parents=True)
    return folder


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, hugging_face: Path) -> Iterator[StandinHub]:
    """The hub of this process: a stand-in with one small model."""
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(hub_client, "PAUSES_S", (0.01, 0.01))
    with serving(StandinHub(REPOSITORY, {FIRST: small_model()}, {"main": FIRST})) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        yield hub


@pytest.fixture
def closed_port() -> int:
    """Return a port of this machine on which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        return int(closed.getsockname()[1])
