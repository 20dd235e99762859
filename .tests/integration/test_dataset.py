"""Recorded prompts of a file, from the configuration to the archive, on the stand-in."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from io import BytesIO
from pathlib import Path

import pyarrow
import pytest
import yaml
from pyarrow import parquet

from builders.standin_hub import FIRST, StandinHub, serving
from integration.harness import ROOT, RUN, Checkout
from servemark import verification
from servemark.archive import seal as sealing
from servemark.reproduction import prepare
from servemark.verification.unpack import unpacked
from servemark.weights import builtin

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
    options = checkout.config["deployments"]["a"]["options"]
    allowed, options["max-model-len"] = options["max-model-len"], 65
    refused = checkout.run()
    assert refused.rc != 0 and re.search(r"line \d+ of prompts\.jsonl", refused.text), refused.text
    options["max-model-len"] = allowed
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


def changed_copy(found: Path, name: str, tmp_path: Path, at: int) -> Path:
    """Return an archive of the same files with one other byte, whose manifest fits it."""
    folder = tmp_path / Path(name).name
    shutil.copytree(found, folder)
    (path,) = folder.glob(name)
    text = bytearray(path.read_bytes())
    text[at] ^= 1
    path.write_bytes(text)
    made = {folder / sealing.README, folder / sealing.MANIFEST}
    files = {one.relative_to(folder).as_posix(): one for one in sorted(folder.rglob("*")) if one.is_file() and one not in made}
    sealing.seal(files, tmp_path / f"{folder.name}.tar.zst")
    return tmp_path / f"{folder.name}.tar.zst"


def test_same_rows_under_another_name_come_from_the_ledger_and_can_be_shared(
    checkout: Checkout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    recorded(checkout, concurrency=1)
    assert checkout.run().rc == 0
    record = checkout.record("deployments/a/points/mine-c1-r1.json")
    (checkout.path / "prompts.jsonl").rename(checkout.path / "moved.jsonl")
    checkout.config["workloads"]["mine"] |= {"dataset": {"file": "moved.jsonl"}, "share_prompts": True}
    again = checkout.run()
    assert again.rc == 0 and "taken from the ledger" in again.text, again.text
    assert checkout.record("deployments/a/plan.json")["points"][0]["key"] == record["key"]
    assert_prompts_are_archived_verified_and_reproduced(checkout, tmp_path, monkeypatch)

    lines = (checkout.path / "moved.jsonl").read_text().splitlines()
    (checkout.path / "moved.jsonl").write_text("\n".join(lines[:-1]) + "\n")
    changed = checkout.run("--until", "plan_deployment")
    assert changed.rc == 0, changed.text
    assert checkout.record("deployments/a/plan.json")["points"][0]["key"] != record["key"]


def assert_prompts_are_archived_verified_and_reproduced(checkout: Checkout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Assert that the archive has the prompts, that changed ones are found, and that another checkout measures with them."""
    with unpacked(checkout.results / "archive" / f"{RUN}.tar.zst") as found:
        (shared,) = found.folder.glob("datasets/*/prompts.jsonl")
        assert [json.loads(line) for line in shared.read_text().splitlines()] == list(map(json.loads, SAMPLE.read_text().splitlines()))
        record = shared.with_name("dataset.json")
        at = record.read_text().index(json.loads(record.read_text())["sha256"], record.read_text().index('"sha256"'))
        for name, byte in (("datasets/*/prompts.jsonl", 20), ("datasets/*/dataset.json", at)):
            lines = verification.verify(changed_copy(found.folder, name, tmp_path, byte)).wrong
            assert any("sha256" in line and "dataset.json" in line for line in lines), lines
    monkeypatch.chdir(checkout.path)
    prepared = prepare.prepare(checkout.results / "archive" / f"{RUN}.tar.zst", Path("again"))
    (workload,) = yaml.safe_load(prepared.config.read_text())["workloads"].values()
    assert workload["dataset"]["file"].startswith("again/datasets/")
    rows = Path(workload["dataset"]["file"]).read_text().splitlines()
    assert list(map(json.loads, rows)) == list(map(json.loads, SAMPLE.read_text().splitlines()))


TALK = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why is the sea salt?"}]


def test_conversations_prompts_and_recorded_responses_are_measured(checkout: Checkout):
    """Rows with messages and with prompts, random prompts, groups, and files of ShareGPT and the hub with lengths of responses."""
    recorded(checkout, concurrency=1, api="chat")
    rows = [{"messages": TALK, "output_tokens": 5}, {"prompt": "Name three ports.", "output_tokens": 7}]
    (checkout.path / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    random = {"dataset": "random", "input_tokens": 64, "output_tokens": 8, "requests": 8, "concurrency": 1, "warmups": 1}
    checkout.config["workloads"]["made"] = random | {"api": "chat"}
    turns = [{"from": "human", "value": "Why is the sea salt?"}, {"from": "gpt", "value": "Because rivers carry salt."}]
    (checkout.path / "sharegpt.json").write_text(json.dumps([{"conversations": turns}]))
    asked = {"dataset": {"sharegpt": "sharegpt.json"}, "output_tokens": "recorded", "requests": 6, "concurrency": 1}
    checkout.config["workloads"]["asked"] = asked
    made = BytesIO()
    parquet.write_table(pyarrow.table({"talk": [[*TALK, {"role": "assistant", "content": "Rivers carry salt."}]]}), made)
    hub = StandinHub("org/small-set", {FIRST: {"data/train-00000-of-00001.parquet": made.getvalue()}}, {})
    hub.kind = "dataset"
    source = {"hf": f"org/small-set@{FIRST}", "column": "talk"}
    checkout.config["workloads"]["fetched"] = asked | {"dataset": source, "api": "chat"}
    group = {"prefix": {"groups": 4, "prefix_tokens": 60, "suffix_tokens": 10}}
    checkout.config["workloads"]["groups"] = {"dataset": group, "output_tokens": 5, "requests": 8, "concurrency": 1}
    trace = [{"prompt": f"Why {n}?", "output_tokens": 3, "timestamp": moment} for n, moment in enumerate((7, 7, 8, 8, 9, 17))]
    (checkout.path / "trace.jsonl").write_text("".join(json.dumps(row) + "\n" for row in trace))
    arrivals = {"file": "trace.jsonl", "arrivals": "recorded"}
    checkout.config["workloads"]["trace"] = {"dataset": arrivals, "output_tokens": "recorded", "requests": 6, "request_rate": 2}
    with serving(hub):
        done = checkout.run(HF_ENDPOINT=hub.address, NO_PROXY="127.0.0.1")
    assert done.rc == 0, done.text
    raw = checkout.record("deployments/a/points/mine-c1-r1.requests.json")
    assert sorted(set(zip(raw["input_lens"], raw["output_lens"], strict=True))) == [(16, 7), (28, 5)]
    for name in ("mine-c1-r1", "made-c1-r1"):
        record = checkout.record(f"deployments/a/points/{name}.json")
        assert record["verdict"] != "INVALID" and record["key_parts"]["point"]["workload"]["api"] == "chat"
    assert set(checkout.record("deployments/a/points/made-c1-r1.requests.json")["input_lens"]) == {64 + 13}
    assert checkout.record("deployments/a/points/made-c1-r1.json")["load"]["template_tokens"] == 13
    for name in ("asked-c1-r1", "fetched-c1-r1"):
        raw = checkout.record(f"deployments/a/points/{name}.requests.json")
        longest = checkout.record(f"deployments/a/points/{name}.json")["load"]["prompts"]["output_tokens"]
        assert set(raw["output_lens"]) == set(raw["expected_output_lens"]) == {longest} and longest > 5
    assert set(raw["input_lens"]) == {28}, "both messages, as in the file"
    raw = checkout.record("deployments/a/points/groups-c1-r1.requests.json")
    assert (set(raw["input_lens"]), len(raw["input_lens"]), set(raw["output_lens"])) == ({70}, 8, {5})
    raw = checkout.record("deployments/a/points/trace-q2-r1.requests.json")
    starts = [round(start - raw["start_times"][0], 1) for start in raw["start_times"]]
    # 10 s of the trace in the 2.5 s of five gaps at 2 requests/s.
    assert starts == pytest.approx([0, 0, 0.2, 0.2, 0.5, 2.5], abs=1.0)
    datasets = [json.loads(path.read_text()) for path in checkout.results.glob("datasets/*/dataset.json")]
    assert [[file["path"] for file in one["files"]] for one in datasets if one["source"].get("hf") == source["hf"]] == [
        ["data/train-00000-of-00001.parquet"]
    ]
    assert verification.verify(checkout.results / "archive" / f"{RUN}.tar.zst").wrong == ()


def test_search_sends_the_rows_of_a_file(checkout: Checkout):
    recorded(checkout, concurrency={"search": {"from": 1, "to": 2, "trials": 3}}, requests=12)
    checkout.config["slo"] = {"e2el_ms": {"p50": 60_000}}
    done = checkout.run()
    assert done.rc == 0, done.text
    trials = checkout.record("deployments/a/searches/mine/search.json")["trials"]
    # A busy machine makes trials SUSPECT, and the search repeats these.
    assert 1 in {trial["value"] for trial in trials} <= {1, 2}
    assert {trial["point"]["load"]["prompts"]["rows"] for trial in trials} == {len(SAMPLE.read_text().splitlines())}
    assert verification.verify(checkout.results / "archive" / f"{RUN}.tar.zst").wrong == ()


def refused(checkout: Checkout, command: str) -> str:
    """Return what `servemark check` or a run prints; both end with exit code 2 before anything starts."""
    if command == "run":
        done = checkout.run()
        rc, text = done.rc, done.text
    else:
        (checkout.path / "my.yaml").write_text(yaml.safe_dump(checkout.config))
        servemark = Path(sys.executable).with_name("servemark")
        finished = subprocess.run([servemark, "check", "my.yaml"], cwd=checkout.path, capture_output=True, text=True)
        rc, text = finished.returncode, finished.stdout + finished.stderr
    assert rc == 2 and not os.path.exists(checkout.results / "deployments"), text
    return text


@pytest.mark.parametrize("command", ["check", "run"])
def test_chat_without_a_template_is_refused_before_anything_starts(checkout: Checkout, command: str):
    recorded(checkout, api="chat")
    builtin.make("tiny-dense", checkout.path / "model")
    (checkout.path / "model" / "tokenizer_config.json").unlink()
    checkout.config["models"][checkout.config["deployments"]["a"]["model"]] = {"source": "./model"}
    text = refused(checkout, command)
    assert "workloads.mine.api" in text and "chat-template" in text


@pytest.mark.parametrize("command", ["check", "run"])
def test_bad_rows_are_named_before_anything_starts(checkout: Checkout, command: str):
    recorded(checkout)
    with open(checkout.path / "prompts.jsonl", "a") as stream:
        stream.write('{"prompt": ""}\n{"text": "x"}\n' + json.dumps({"messages": TALK, "output_tokens": 5}))
    text = refused(checkout, command)
    assert all(f"line {number}" in text for number in (108, 109, 110)), text
