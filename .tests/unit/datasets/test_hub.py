"""Datasets of the hub: files of a split at a commit, in Parquet as the hub has it and in JSON Lines, from a stand-in of the hub."""

from __future__ import annotations

import io
import json
import shutil

import pyarrow as pa
import pytest
from huggingface_hub import constants
from pyarrow import parquet
from pydantic import TypeAdapter, ValidationError

from builders.standin_hub import FIRST, Fault, StandinHub, serving
from servemark.config.workload import Workload
from servemark.datasets import hub, staging
from servemark.datasets.hub_rows import hub_rows
from servemark.datasets.row import Fault as RowFault
from servemark.datasets.row import Row
from servemark.errors import DatasetRefused, WeightsRefused
from servemark.progress import Progress
from servemark.records import DatasetSource
from servemark.weights import hub_client

NAME = "org/small-set"
PROGRESS = Progress(None, "stage_dataset")
TALK = [{"from": "human", "value": "Why?"}, {"from": "gpt", "value": "Because."}]
CHAT = [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "Because."}]


def table(**columns) -> bytes:
    out = io.BytesIO()
    parquet.write_table(pa.table(columns), out, row_group_size=2)
    return out.getvalue()


def small() -> dict[str, bytes]:
    return {
        "README.md": b"---\nlicense: cc0-1.0\n---\n# A data set",
        "data/train-00000-of-00002.parquet": table(prompt=["one", "two", "three"], output_tokens=[1, 2, 3]),
        "data/train-00001-of-00002.parquet": table(prompt=["four", ""], output_tokens=[4, 5]),
        "data/test-00000-of-00001.parquet": table(prompt=["never"], output_tokens=[9]),
    }


@pytest.fixture
def served(monkeypatch, tmp_path):
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "SLURM_JOB_ID", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    home = tmp_path / "home"
    (home / "hub").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    for name, path in {"HF_HOME": "", "HF_HUB_CACHE": "hub", "HF_TOKEN_PATH": "token", "HF_STORED_TOKENS_PATH": "stored"}.items():
        monkeypatch.setattr(constants, name, str(home / path))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(hub_client, "PAUSES_S", ())
    server = StandinHub(NAME, {FIRST: small()}, {})
    server.kind = "dataset"
    with serving(server):
        monkeypatch.setenv("HF_ENDPOINT", server.address)
        yield server


def source(**changes) -> DatasetSource:
    return DatasetSource(**{"hf": f"{NAME}@{FIRST}", **changes})


def lines(staged) -> list[dict]:
    with open(staged.path) as stream:
        return [json.loads(line) for line in stream]


def test_split_is_downloaded_once_and_then_used_offline(served, tmp_path, monkeypatch):
    staged = staging.stage(source(), tmp_path / "cache", PROGRESS)
    assert lines(staged) == [{"prompt": word, "output_tokens": n} for n, word in enumerate(("one", "two", "three", "four"), 1)]
    assert (staged.rows, staged.skipped, staged.source.hf) == (4, 1, f"{NAME}@{FIRST}")
    assert [file.path for file in staged.files] == ["data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet"]
    assert served.fetched() == ["README.md", *(file.path for file in staged.files)]
    asked = len(served.asked)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert staging.stage(source(), tmp_path / "cache", PROGRESS) == staged and len(served.asked) == asked
    with pytest.raises(WeightsRefused) as refused:
        staging.stage(source(split="test"), tmp_path / "cache", PROGRESS)
    assert refused.value.reason == "hub_offline"


def test_changed_file_is_downloaded_again(served, tmp_path):
    staged = staging.stage(source(), tmp_path / "cache", PROGRESS)
    path = next((tmp_path / "cache").rglob("train-00001*.parquet"))
    path.write_bytes(b"x" * path.stat().st_size)
    with pytest.raises(WeightsRefused) as refused:
        staging.stage(source(), tmp_path / "cache", PROGRESS)
    assert refused.value.reason == "hub_digest_differs"
    assert staging.stage(source(), tmp_path / "cache", PROGRESS) == staged


def test_snapshot_in_a_hugging_face_cache_is_used_if_it_is_whole(served, tmp_path):
    snapshot = tmp_path / "home" / "hub" / "datasets--org--small-set" / "snapshots" / FIRST
    for path, content in small().items():
        (snapshot / path).parent.mkdir(parents=True, exist_ok=True)
        (snapshot / path).write_bytes(content)
    found = staging.stage(source(), tmp_path / "cache", PROGRESS)
    assert found.rows == 4 and served.asked == []
    (snapshot / "data" / "train-00000-of-00002.parquet").unlink()
    assert staging.stage(source(), tmp_path / "cache", PROGRESS) == found and served.asked != []


def test_part_of_a_split_in_a_cache_does_not_count_as_the_split(served, tmp_path, monkeypatch):
    rows = {name: f'{{"prompt": "{name}"}}\n'.encode() for name in ("data/train_a.jsonl", "data/train_b.jsonl")}
    served.commits[FIRST] = {"README.md": b"no statement of files", **rows}
    snapshot = tmp_path / "home" / "hub" / "datasets--org--small-set" / "snapshots" / FIRST
    (snapshot / "data").mkdir(parents=True)
    (snapshot / "data" / "train_a.jsonl").write_bytes(rows["data/train_a.jsonl"])
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    said = []
    monkeypatch.setattr(PROGRESS, "say", said.append)
    assert staging.stage(source(), tmp_path / "offline", PROGRESS).rows == 1 and any("HF_HUB_OFFLINE" in text for text in said)
    monkeypatch.delenv("HF_HUB_OFFLINE")
    assert staging.stage(source(), tmp_path / "online", PROGRESS).rows == 2
    (snapshot / "data" / "train_b.jsonl").write_bytes(rows["data/train_b.jsonl"])
    asked = served.fetched().count("data/train_a.jsonl")
    assert staging.stage(source(), tmp_path / "whole", PROGRESS).rows == 2
    assert served.fetched().count("data/train_a.jsonl") == asked, "the hub listed the files, and the cache has them all"


@pytest.mark.parametrize(("code", "reason"), [("RepoNotFound", "hub_repository_missing"), ("GatedRepo", "hub_gated")])
def test_refusals_of_the_hub_have_the_page_of_the_dataset(served, tmp_path, code, reason):
    served.faults = [Fault("/api/", 401, headers={"X-Error-Code": code})]
    with pytest.raises(WeightsRefused, match="dataset") as refused:
        staging.stage(source(), tmp_path / "cache", PROGRESS)
    assert refused.value.reason == reason and refused.value.look == f"{served.address}/datasets/{NAME}"


def chosen(listed, readme=None, **changes) -> list[str]:
    return hub.choose(source(**changes), listed, readme or {})


def test_files_of_a_split_follow_the_conventions_of_the_hub():
    assert chosen(["train.jsonl", "test.jsonl", "README.md"]) == ["train.jsonl"]
    assert chosen(["a/train/0000.parquet", "a/train/0001.parquet", "a/test/0000.parquet"], split="test") == ["a/test/0000.parquet"]
    assert chosen(["data.parquet", "more/data2.parquet"]) == ["data.parquet", "more/data2.parquet"], "without splits all are train"
    assert chosen(["plain/train-0.parquet", "raw/train-0.parquet"], subset="raw") == ["raw/train-0.parquet"]
    nested = ["de/train/0.parquet", "en/train/0.parquet"]
    with pytest.raises(DatasetRefused) as refused:
        chosen(nested)
    assert [chosen(nested, subset=name) for name in str(refused.value.do).rpartition(": ")[2].rstrip(".").split(", ")] == [
        nested[:1],
        nested[1:],
    ], "each subset that the message names is accepted"
    for listed, changes in (
        (["plain/train-0.parquet", "raw/train-0.parquet"], {}),
        (["test.parquet"], {}),
        (["train.csv"], {}),
        ([".hidden/train.parquet", "../train.parquet"], {}),
        (["train.parquet"], {"split": "validation"}),
    ):
        with pytest.raises(DatasetRefused):
            chosen(listed, **changes)


def test_files_of_a_split_follow_the_readme():
    listed = ["a.parquet", "b.parquet", "c/x.parquet", "c/y.parquet"]
    split = [{"split": "train", "path": ["a.parquet", "c/*.parquet"]}, {"split": "test", "path": "b.parquet"}]
    one = {"configs": [{"config_name": "default", "data_files": split}]}
    assert chosen(listed, one) == ["a.parquet", "c/x.parquet", "c/y.parquet"] and chosen(listed, one, split="test") == ["b.parquet"]
    two = {"configs": [{"config_name": "x", "data_files": "a.parquet"}, {"config_name": "y", "data_files": "b.parquet", "default": True}]}
    assert chosen(listed, two) == ["b.parquet"] and chosen(listed, two, subset="x") == ["a.parquet"]
    del two["configs"][1]["default"]
    for changes in ({}, {"subset": "z"}):
        with pytest.raises(DatasetRefused, match="subset"):
            chosen(listed, two, **changes)


@pytest.mark.parametrize("messages", [TALK, CHAT])
@pytest.mark.parametrize("form", ["parquet", "jsonl"])
def test_messages_end_before_the_recorded_response(tmp_path, messages, form):
    path = tmp_path / f"train.{form}"
    path.write_bytes(table(m=[messages, messages[1:]]) if form == "parquet" else json.dumps({"m": messages}).encode() + b"\n")
    found = list(hub_rows([path], "m"))
    assert found[0] == Row(messages=({"role": "user", "content": "Why?"},), response="Because.")
    assert found[1:] == ([None] if form == "parquet" else []), "a response alone is no request"


def test_patterns_of_a_readme_match_as_in_the_hubs_own_library():
    listed = ["a.jsonl", "extra/b.jsonl", "extra/deep/c.jsonl"]
    assert chosen(listed, {"configs": [{"config_name": "default", "data_files": "*.jsonl"}]}) == ["a.jsonl"]
    assert chosen(listed, {"configs": [{"config_name": "default", "data_files": "**/*.jsonl"}]}) == listed
    with pytest.raises(DatasetRefused, match="README"):
        chosen(listed, {"configs": [{"config_name": "default", "data_files": "a**"}]})


def test_row_that_nobody_can_correct_is_left_out(tmp_path):
    path = tmp_path / "train.jsonl"
    question, empty = {"role": "user", "content": "Why?"}, {"role": "user", "content": " "}
    called, answer = {"role": "assistant", "content": None}, {"role": "assistant", "content": "So."}
    talks = [[question, called, question, answer], [empty, answer], [question, answer, answer]]
    path.write_text("".join(json.dumps({"p": talk}) + "\n" for talk in talks) + "\n")
    first, *others = hub_rows([path], "p")
    assert [message["content"] for message in first.messages] == ["Why?", "", "Why?"] and first.response == "So."
    assert others == [None, None]


def test_lengths_of_a_column_with_gaps_are_whole_numbers(tmp_path):
    path = tmp_path / "train.parquet"
    path.write_bytes(table(p=["a", "b", "c"], output_tokens=pa.array([12.0, float("nan"), None])))
    assert [row.output_tokens for row in hub_rows([path], "p")] == [12, None, None]


@pytest.mark.parametrize(
    "row", [{"x": 1}, {"p": 3}, {"p": ["a"]}, {"p": [{"from": "robot", "value": "x"}]}, {"p": "a", "output_tokens": 0}, {"p": "\ud800"}]
)
def test_bad_row_has_its_number_and_file(tmp_path, row):
    path = tmp_path / "train.jsonl"
    path.write_text(json.dumps({"p": "good"}) + "\n" + json.dumps(row) + "\n")
    good, bad = hub_rows([path], "p")
    assert good == Row("good") and isinstance(bad, RowFault) and bad.place == "row 2 of train.jsonl"


def test_file_that_is_no_parquet_is_a_fault(tmp_path):
    path = shutil.copy(__file__, tmp_path / "train.parquet")
    (fault,) = hub_rows([path], "p")
    assert isinstance(fault, RowFault)


@pytest.mark.parametrize(
    "given", [{"hf": NAME}, {"hf": f"{NAME}@main"}, {"hf": f"../x@{FIRST}"}, {"file": "a", "split": "train"}, {"hf": "a", "file": "b"}]
)
def test_configuration_needs_a_whole_commit_and_its_own_keys(given):
    values = {"output_tokens": 4, "requests": 8, "concurrency": 1}
    workload = TypeAdapter(Workload).validate_python(values | {"dataset": {"hf": f"{NAME}@{FIRST}", "split": "test", "column": "p"}})
    assert workload.prompts.name.startswith("small-set-")
    with pytest.raises(ValidationError):
        TypeAdapter(Workload).validate_python(values | {"dataset": given})
