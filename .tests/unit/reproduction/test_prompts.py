"""Prompts of a dataset in a reproduction: from the archive if it has them, else from the user's file."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from builders.paths import ROOT
from servemark.datasets import staging
from servemark.progress import Progress
from servemark.records import DatasetSource
from servemark.report.gather import RunRecords
from servemark.reproduction import configuration
from servemark.reproduction.archived import Archived

SAMPLE = ROOT / "config" / "prompts" / "sample.jsonl"


@pytest.fixture
def staged(tmp_path) -> Callable[..., Archived]:
    """Return a function that makes an archive with a workload of one staged dataset, and its prompts if they are shared."""

    def make(source: dict, *, shared: bool, output_tokens: int | str = 4) -> Archived:
        asked = DatasetSource.model_validate(source)
        dataset = staging.stage(asked, tmp_path / "cache", Progress(None, "stage_dataset"))
        entry = {"dataset": source, "output_tokens": output_tokens, "share_prompts": shared}
        prompts = {f"datasets/{asked.name}/prompts.jsonl": Path(dataset.path).read_bytes()} if shared else {}
        records = RunRecords(config={"workloads": {"mine": entry, "also": entry}}, datasets={asked.name: dataset})
        return Archived(records, "", prompts)

    return make


def workload(archived: Archived, folder: Path) -> tuple[dict, list[str]]:
    """Return the dataset of the new configuration, and the notes about it."""
    made = configuration.make(archived, folder, "again", None)
    return made.config["workloads"]["mine"]["dataset"], [note for note in made.notes if note.startswith("dataset ")]


def test_prompts_of_a_user_are_named_with_their_digest(staged):
    archived = staged({"file": str(SAMPLE)}, shared=False)
    dataset, (note,) = workload(archived, Path("again"))
    (record,) = archived.records.datasets.values()
    assert dataset == {"file": str(SAMPLE)}
    assert str(SAMPLE) in note and record.sha256[:12] in note and f"{record.rows} rows" in note


def test_shared_prompts_of_the_archive_are_used_and_give_the_same_dataset(staged, tmp_path):
    rows = [{"prompt": "Why?", "timestamp": 7.25}, {"prompt": "Größer\u2028?", "output_tokens": 3, "timestamp": 9.5, "more": 1}]
    (tmp_path / "mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    archived = staged({"file": str(tmp_path / "mine.jsonl"), "arrivals": "recorded"}, shared=True)
    dataset, (note,) = workload(archived, tmp_path / "again")
    assert dataset["file"] in note and dataset["arrivals"] == "recorded"
    ((name, content),) = archived.files.items()
    Path(dataset["file"]).parent.mkdir(parents=True)
    Path(dataset["file"]).write_bytes(content)
    again = staging.stage(DatasetSource.model_validate(dataset), tmp_path / "other", Progress(None, "stage_dataset"))
    assert [again.sha256] == [one.sha256 for one in archived.records.datasets.values()]
    other = replace(archived, files={name: content + b"{}"})
    assert workload(other, tmp_path / "again")[0]["file"] == str(tmp_path / "mine.jsonl"), "the digest does not fit"


def test_shared_prompts_without_the_recorded_responses_are_not_used(staged, tmp_path):
    turns = [{"from": "human", "value": "Why is the sea salt?"}, {"from": "gpt", "value": "Because rivers carry salt."}]
    (tmp_path / "talks.json").write_text(json.dumps([{"conversations": turns}]))
    source = {"sharegpt": str(tmp_path / "talks.json")}
    archived = staged(source, shared=True, output_tokens="recorded")
    assert workload(archived, Path("again"))[0] == source
    assert workload(staged(source, shared=True), Path("again"))[0] != source
