"""A user's own lock file on real vLLM (CPU): the environment is built from it, served and archived."""

from __future__ import annotations

import json
import shutil

import pytest

from integration.harness import ROOT
from servemark import verification

pytestmark = [pytest.mark.full, pytest.mark.timeout(1500)]


def test_environment_from_an_own_lock_file_serves(real, tmp_path):
    """The lock file is the cpu one with another name and place, as a user's own list would be."""
    own = shutil.copy(ROOT / "envs/cpu.lock", tmp_path / "mine.lock")
    real.config["cache"] = str(tmp_path / "cache")  # so that the environment is built
    real.config["environments"] = {"mine": {"lock": str(own)}}
    real.config["deployments"] = {
        "a": {
            "model": "tiny",
            "environment": "mine",
            "options": {"max-model-len": 512, "enforce-eager": True, "dtype": "bfloat16"},
            "variables": {"VLLM_CPU_KVCACHE_SPACE": "1"},
        }
    }
    real.config["workloads"] = {"chat": {"dataset": "random", "input_tokens": 32, "output_tokens": 8, "requests": 40, "concurrency": 2}}
    real.config["timeouts"] = {"start": 400.0, "stall": 300.0, "no_progress": 60.0, "stop": 10.0}
    done = real.run(seconds=1200)
    assert done.rc == 0, done.text
    record = json.loads(real.archived()["environments/mine/environment.json"])
    assert record["origin"] == "lock" and record["packages"] > 100
    assert {row["verdict"] for row in real.rows().values()} <= {"VALID", "SUSPECT"}
    assert [verification.verify(path).wrong for path in real.results.glob("archive/*.tar.zst")] == [()]
    real.assert_all_dead()
