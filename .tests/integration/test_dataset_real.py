"""Recorded prompts of a file on real vLLM (CPU): every output has the length that its row states."""

from __future__ import annotations

import json
import shutil

import pytest

from integration.harness import ROOT
from servemark import verification

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]
SAMPLE = ROOT / "config" / "prompts" / "sample.jsonl"


def assert_chat(real) -> None:
    """The servers get every message of a row and apply the template, whose tokens the plan counts as they do."""
    raw, planned = (real.record(f"deployments/a/{name}.json") for name in ("points/talk-c2-r1.requests", "plan"))
    loads = {point["load"]["workload"]: point["load"] for point in planned["points"]}
    assert raw["output_lens"] == raw["expected_output_lens"] and set(raw["output_lens"]) == set(range(4, 13))
    lengths = dict(zip(raw["output_lens"], raw["input_lens"], strict=True))
    assert max(lengths.values()) == loads["talk"]["prompts"]["input_tokens"]
    # One message fewer, and a template around each.
    assert min(lengths[n] for n in range(4, 12)) > lengths[12]
    made = real.record("deployments/a/points/made-c2-r1.requests.json")
    assert loads["made"]["template_tokens"] == 13
    assert abs(sum(made["input_lens"]) / 16 - (64 + 13)) < 2
    # At most as many chunks as tokens: the event with the role alone is left out. On a busy machine, chunks come together.
    assert all(len(gaps) + 1 <= tokens for gaps, tokens in zip(made["itls"], made["output_lens"], strict=True))


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
    talks = [{"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": f"Why {n}?"}]} for n in range(8)]
    rows = [*talks, {"prompt": "Name three ports."}]
    (real.path / "talks.jsonl").write_text("".join(json.dumps(row | {"output_tokens": 4 + n}) + "\n" for n, row in enumerate(rows)))
    talk = {"dataset": {"file": "talks.jsonl"}, "output_tokens": "recorded", "api": "chat", "requests": 27, "concurrency": 2}
    made = {"dataset": "random", "input_tokens": 64, "output_tokens": 8, "api": "chat", "requests": 16, "concurrency": 2}
    trace_rows = [
        row | {"output_tokens": 5, "timestamp": 40 + moment} for row, moment in zip(rows, (0, 0, 1, 2, 4, 4, 8, 9, 16), strict=True)
    ]
    (real.path / "trace.jsonl").write_text("".join(json.dumps(row) + "\n" for row in trace_rows))
    arrivals = {"file": "trace.jsonl", "arrivals": "recorded"}
    trace = {"dataset": arrivals, "output_tokens": "recorded", "api": "chat", "requests": 9, "request_rate": 1}
    group = {"prefix": {"groups": 2, "prefix_tokens": 256, "suffix_tokens": 32}}
    # Long enough for the counters, which are read about once a second.
    groups = {"dataset": group, "output_tokens": 16, "requests": 128, "concurrency": 2}
    real.config["workloads"] = {"mine": mine, "talk": talk, "made": made, "groups": groups, "trace": trace}
    real.config["timeouts"] = {"start": 400.0, "stall": 300.0, "no_progress": 60.0, "stop": 10.0}
    done = real.run(seconds=800)
    assert done.rc == 0, done.text
    rows = {point: row for (_, point), row in real.rows().items()}
    assert {name: int(row["requests_completed"]) for name, row in rows.items()} == {
        "mine-c4-r1": 40,
        "talk-c2-r1": 27,
        "made-c2-r1": 16,
        "groups-c2-r1": 128,
        "trace-q1-r1": 9,
    }
    assert {row["verdict"] for row in rows.values()} <= {"VALID", "SUSPECT"}
    raw = real.record("deployments/a/points/mine-c4-r1.requests.json")
    recorded = {line["output_tokens"] for line in map(json.loads, SAMPLE.read_text().splitlines())}
    assert raw["output_lens"] == raw["expected_output_lens"]
    assert set(raw["output_lens"]) <= recorded and len(set(raw["output_lens"])) > 3
    # The bound of the plan is counted with the model's own tokenizer, as vLLM's client counts.
    longest = real.record("deployments/a/plan.json")["points"][0]["load"]["prompts"]["input_tokens"]
    assert max(raw["input_lens"]) <= longest <= 1.1 * max(raw["input_lens"]) + 8
    assert_chat(real)
    starts = real.record("deployments/a/points/trace-q1-r1.requests.json")["start_times"]
    assert [start - starts[0] for start in starts] == pytest.approx([0, 0, 0.5, 1, 2, 2, 4, 4.5, 8], abs=0.4)
    # 126 of 128 prompts find the beginning of their group, 256 of 288 tokens, in the prefix cache.
    assert 0.5 < float(rows["groups-c2-r1"]["prefix_hit_share"]) <= 256 / 288
    lengths = real.record("deployments/a/points/groups-c2-r1.requests.json")["input_lens"]
    assert abs(sum(lengths) / 128 - 288) < 8
    assert [verification.verify(path).wrong for path in real.results.glob("archive/*.tar.zst")] == [()]
    real.assert_all_dead()
