"""Recorded prompts of a file, from the configuration to the archive, on the stand-in."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from integration.harness import ROOT, RUN, Checkout
from servemark import verification
from servemark.verification.unpack import unpacked

SAMPLE = ROOT / "config" / "prompts" / "sample.jsonl"
POINTS = ("mine-c1-r1", "mine-c2-r1")


def recorded(checkout: Checkout, **changes: object) -> None:
    """Configure one deployment with the sample's prompts and recorded output lengths."""
    shutil.copy(SAMPLE, checkout.path / "prompts.jsonl")
    workload = {"dataset": {"file": "prompts.jsonl"}, "output_tokens": "recorded", "requests": 8, "concurrency": [1, 2], "warmups": 1}
    checkout.config["deployments"] = {"a": checkout.config["deployments"]["a"]}
    checkout.config["deployments"]["a"]["options"]["max-model-len"] = 1024
    checkout.config["workloads"] = {"mine": workload | changes}


def test_recorded_prompts_are_measured_judged_and_archived(checkout: Checkout):
    recorded(checkout, clients="auto")
    done = checkout.run()
    assert done.rc == 0, done.text
    rows = {row["output_tokens"]: row for row in map(json.loads, SAMPLE.read_text().splitlines())}
    records = [checkout.record(f"deployments/a/points/{name}.json") for name in POINTS]
    for name, record in zip(POINTS, records, strict=True):
        raw = checkout.record(f"deployments/a/points/{name}.requests.json")
        assert record["verdict"] != "INVALID" and record["completed"] == 8
        assert raw["output_lens"] == raw["expected_output_lens"] and set(raw["output_lens"]) <= set(rows)
        assert len(set(raw["output_lens"])) > 1
        workload = record["key_parts"]["point"]["workload"]
        assert len(workload["sha256"]) == 64 and workload["output_tokens"] == "recorded"
        assert "prompts.jsonl" not in json.dumps(record["key_parts"])
    (staged,) = checkout.results.glob("datasets/*/dataset.json")
    dataset = json.loads(staged.read_text())
    assert dataset["rows"] == len(SAMPLE.read_text().splitlines()) == sum(dataset["output_tokens"]["counts"])
    plan = checkout.record("deployments/a/plan.json")
    prompts = plan["points"][0]["load"]["prompts"]
    assert prompts["output_tokens"] == 64 and 8 < prompts["input_tokens"] <= dataset["prompt_bytes"]["most"]
    assert not list(checkout.results.glob("deployments/a/points/.*.jsonl"))
    archive = checkout.results / "archive" / f"{RUN}.tar.zst"
    assert verification.verify(archive).wrong == ()
    prompt = json.loads(SAMPLE.read_text().splitlines()[40])["prompt"][:40]
    with unpacked(archive) as found:
        texts = {path.relative_to(found.folder).as_posix(): path.read_bytes() for path in found.folder.rglob("*") if path.is_file()}
    assert any(name.startswith("datasets/") for name in texts)
    assert [name for name, text in texts.items() if prompt.encode() in text] == []


def test_same_rows_under_another_name_come_from_the_ledger(checkout: Checkout):
    recorded(checkout, concurrency=1)
    assert checkout.run().rc == 0
    key = checkout.record("deployments/a/points/mine-c1-r1.json")["key"]
    (checkout.path / "prompts.jsonl").rename(checkout.path / "moved.jsonl")
    checkout.config["workloads"]["mine"]["dataset"] = {"file": "moved.jsonl"}
    again = checkout.run()
    assert again.rc == 0 and "taken from the ledger" in again.text, again.text
    lines = (checkout.path / "moved.jsonl").read_text().splitlines()
    (checkout.path / "moved.jsonl").write_text("\n".join(lines[:-1]) + "\n")
    changed = checkout.run()
    assert changed.rc == 0, changed.text
    assert checkout.record("deployments/a/points/mine-c1-r1.json")["key"] != key


def test_shared_prompts_are_in_the_archive(checkout: Checkout):
    recorded(checkout, concurrency=1, output_tokens=4, share_prompts=True)
    done = checkout.run()
    assert done.rc == 0, done.text
    with unpacked(checkout.results / "archive" / f"{RUN}.tar.zst") as found:
        (shared,) = found.folder.glob("datasets/*/prompts.jsonl")
        assert [json.loads(line) for line in shared.read_text().splitlines()] == list(map(json.loads, SAMPLE.read_text().splitlines()))


@pytest.mark.parametrize("command", ["check", "run"])
def test_bad_rows_are_named_before_anything_starts(checkout: Checkout, command: str):
    recorded(checkout)
    with open(checkout.path / "prompts.jsonl", "a") as stream:
        stream.write('{"prompt": ""}\n{"text": "x"}\n')
    if command == "run":
        done = checkout.run()
        rc, text = done.rc, done.text
    else:
        (checkout.path / "my.yaml").write_text(yaml.safe_dump(checkout.config))
        servemark = Path(sys.executable).with_name("servemark")
        finished = subprocess.run([servemark, "check", "my.yaml"], cwd=checkout.path, capture_output=True, text=True)
        rc, text = finished.returncode, finished.stdout + finished.stderr
    assert rc == 2 and "line 108" in text and "line 109" in text, text
    assert not os.path.exists(checkout.results / "deployments")
