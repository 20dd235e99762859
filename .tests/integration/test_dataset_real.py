"""Recorded prompts of a file on real vLLM (CPU): every output has the length that its row states."""

from __future__ import annotations

import json
import shutil

import pytest

from integration.harness import ROOT
from servemark import verification

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]
SAMPLE = ROOT / "config" / "prompts" / "sample.jsonl"


def test_prompt_file_is_served_and_archived(real):
    shutil.copy(SAMPLE, real.path / "prompts.jsonl")
    real.config["deployments"] = {
        "a": {
            "model": "tiny",
            "environment": "cpu",
            "options": {"max-model-len": 1024, "enforce-eager": True, "dtype": "bfloat16"},
            "variables": {"VLLM_CPU_KVCACHE_SPACE": "1"},
        }
    }
    mine = {"dataset": {"file": "prompts.jsonl"}, "output_tokens": "recorded", "requests": 40, "concurrency": 4, "clients": 2}
    real.config["workloads"] = {"mine": mine}
    real.config["timeouts"] = {"start": 400.0, "stall": 300.0, "no_progress": 60.0, "stop": 10.0}
    done = real.run(seconds=800)
    assert done.rc == 0, done.text
    ((_, row),) = real.rows().items()
    assert row["verdict"] in ("VALID", "SUSPECT") and int(row["requests_completed"]) == 40
    raw = real.record("deployments/a/points/mine-c4-r1.requests.json")
    recorded = {line["output_tokens"] for line in map(json.loads, SAMPLE.read_text().splitlines())}
    assert raw["output_lens"] == raw["expected_output_lens"]
    assert set(raw["output_lens"]) <= recorded and len(set(raw["output_lens"])) > 3
    # The bound of the plan is counted with the model's own tokenizer, as vLLM's client counts.
    longest = real.record("deployments/a/plan.json")["points"][0]["load"]["prompts"]["input_tokens"]
    assert max(raw["input_lens"]) <= longest <= 1.1 * max(raw["input_lens"]) + 8
    assert [verification.verify(path).wrong for path in real.results.glob("archive/*.tar.zst")] == [()]
    real.assert_all_dead()
