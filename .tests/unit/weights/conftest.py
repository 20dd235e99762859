"""Fixtures of the tests of the hub."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from builders.standin_hub import FIRST, REPOSITORY, StandinHub, serving, small_model
from servemark.weights import hub_client


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandinHub]:
    """The hub of this process: a stand-in with one small model."""
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(hub_client, "PAUSES_S", (0.01, 0.01))
    with serving(StandinHub(REPOSITORY, {FIRST: small_model()}, {"main": FIRST})) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        yield hub
