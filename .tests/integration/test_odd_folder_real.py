"""Real vLLM (CPU) in a folder with special characters in its name: compiled by torch, and on Ray."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from builders import odd_folder
from integration import harness
from integration.harness import Checkout
from integration.test_real_vllm import TINY, _possible, _short_runtime, real  # noqa: F401 - two are fixtures


@pytest.mark.full
@pytest.mark.real
@pytest.mark.timeout(900)
def test_real_vllm_compiles_and_uses_ray_in_odd_folder(fresh: Checkout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = real(fresh, {}, requests=20)
    (tmp_path / odd_folder.NAME).mkdir()
    fresh.path = Path(shutil.move(fresh.path, tmp_path / odd_folder.NAME / "checkout"))
    # Its own cache, so that torch compiles; the environment of the other tests.
    (fresh.path / "results/cache").mkdir()
    (fresh.path / "results/cache/environments").symlink_to(Path(config["cache"], "environments"))
    compiled = TINY | {"options": TINY["options"] | {"enforce-eager": False}}
    ray = TINY | {"topology": {"tensor_parallel": 2, "executor": "ray"}}
    fresh.config = config | {"cache": "results/cache", "deployments": {"a": compiled, "b": ray}}
    fresh.config["verdict"] = {"min_duration_s": 0.0, "min_requests_per_slot": 1.0}
    fresh.config["timeouts"]["start"] = 400.0
    monkeypatch.setattr(harness, "SNAKEMAKE", odd_folder.own_environment(fresh.path))
    done = fresh.run(LC_ALL="C", PYTHONPATH="", seconds=800)
    assert done.rc == 0, done.text
    fresh.assert_all_dead()
