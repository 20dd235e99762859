"""An accuracy check on real software: lm-eval from its lock file, a task of our own, and the tiny model on real vLLM (CPU)."""

from __future__ import annotations

import csv
import json
import shutil

import pytest

from integration.harness import ROOT
from servemark import verification

pytestmark = [pytest.mark.real, pytest.mark.full, pytest.mark.timeout(1500)]
TASK = ROOT / ".tests" / "fixtures" / "tasks" / "capitals"
EXAMPLES = 9


def test_lm_eval_checks_tiny_model(real):
    shutil.copytree(TASK, real.path / "capitals")
    real.config["deployments"] = {
        "a": {
            "model": "tiny",
            "environment": "cpu",
            "options": {"max-model-len": 512, "enforce-eager": True, "dtype": "bfloat16"},
            "variables": {"VLLM_CPU_KVCACHE_SPACE": "1"},
            "checks": {
                "capitals": {"task": "capitals/capitals.yaml", "limit": EXAMPLES, "shots": 1, "min": 1.0},
                "generated": {"task": "capitals/capitals-generated.yaml", "limit": 3, "min": 0.0},
            },
        }
    }
    real.config["workloads"]["chat"]["concurrency"] = [2]
    real.config["timeouts"] = {"start": 400.0, "stall": 300.0, "no_progress": 60.0, "stop": 10.0, "point": 600.0}
    # The task's data lie next to it, so no hub is needed.
    done = real.run(seconds=1400, HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", HF_HOME=str(real.path / "hf"))
    assert done.rc == 0, done.text
    record = real.record("deployments/a/checks/capitals/accuracy.json")
    result = json.loads((real.results / "deployments/a/checks/capitals/lm-eval.json").read_text())
    assert record["failure"] is None and record["metric"] == "acc,none" and record["samples"] == EXAMPLES
    assert record["value"] == result["results"]["capitals"]["acc,none"] and 0 <= record["value"] <= 1
    assert result["n-shot"] == {"capitals": 1} and record["data"] == result["task_hashes"] and len(record["data"]["capitals"]) == 64
    generated = real.record("deployments/a/checks/generated/accuracy.json")
    assert (generated["metric"], generated["value"], generated["samples"]) == ("exact_match,none", 0.0, 3)
    row, _ = csv.DictReader((real.results / "accuracy.csv").open())
    assert float(row["accuracy"]) == record["value"] and float(row["accuracy_stderr"]) == record["stderr"]
    # Random weights do not know capitals.
    assert all("accuracy_below_minimum" in row["reasons"] for row in real.rows().values())
    assert [verification.verify(path).wrong for path in real.results.glob("archive/*.tar.zst")] == [()]
    real.assert_all_dead()
