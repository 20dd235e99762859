"""A point of a workload with a dataset used the dataset whose manifest, and whose shared prompts, are in the archive."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from builders import report_data
from builders.paths import ROOT
from servemark.datasets import staging
from servemark.progress import Progress
from servemark.records import Dataset, DatasetSource, PlannedPoint, StagedPrompts
from servemark.report.gather import RunRecords
from servemark.verification import datasets

SAMPLE = ROOT / "config" / "prompts" / "sample.jsonl"


class Run:
    """One deployment with one point of a staged dataset, its manifest and its shared prompts."""

    def __init__(self, folder: Path):
        self.folder, self.share = folder, True
        self.staged = staging.stage(DatasetSource(file=str(SAMPLE)), folder / "cache", Progress(None, "stage_dataset"))
        self.name = self.staged.name
        self.staged.write(self.manifest)
        shutil.copy(self.staged.path, self.prompts)
        self.planned = StagedPrompts(
            dataset="staged", name=self.name, sha256=self.staged.sha256, rows=self.staged.rows, input_tokens=99, output_tokens=4
        )

    @property
    def manifest(self) -> Path:
        return self.folder / "datasets" / self.name / "dataset.json"

    @property
    def prompts(self) -> Path:
        return self.manifest.with_name("prompts.jsonl")

    def wrong(self) -> list[str]:
        load = report_data.load(name="mine-c1-r1", workload="mine", concurrency=1, repetition=1, seed=1, requests=8)
        point = PlannedPoint(load=load.model_copy(update={"prompts": self.planned}), key="0" * 64)
        workload = {"dataset": {"file": str(SAMPLE)}, "output_tokens": 4, "share_prompts": self.share}
        found = RunRecords(
            folder=self.folder,
            config={"workloads": {"mine": workload, "chat": {"dataset": "random"}}},
            plans={"a": report_data.plan("a", points=()).model_copy(update={"points": (point,)})},
            datasets={self.name: Dataset.read(self.manifest)} if self.manifest.is_file() else {},
        )
        return [finding for finding in datasets.check(found) if isinstance(finding, str)]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def test_file_with_counted_lengths_is_compared_with_the_dataset_it_was_counted_from(run):
    counted = {"sha256": "1" * 64, "rows": run.staged.rows - 1}
    run.planned = run.planned.model_copy(update={**counted, "counted_from": run.staged.sha256})
    assert run.wrong() == []
    run.planned = run.planned.model_copy(update={"counted_from": "2" * 64})
    assert len(run.wrong()) == 1
    run.planned = run.planned.model_copy(update={"counted_from": ""})
    assert len(run.wrong()) == 2, "sha256 and rows"


def flip(path: Path, at: int) -> None:
    """Change one byte of a file."""
    text = bytearray(path.read_bytes())
    text[at] ^= 1
    path.write_bytes(text)


def edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


def test_complete_archive_has_no_contradiction(run):
    assert run.wrong() == []


def test_changed_byte_of_the_digest_in_the_manifest_is_named(run):
    at = run.manifest.read_text().index(run.staged.sha256, run.manifest.read_text().index('"sha256"'))
    flip(run.manifest, at)
    lines = run.wrong()
    assert any(line.startswith("a mine-c1-r1: dataset: sha256:") for line in lines)
    assert any(line.startswith(f"dataset {run.name}: sha256:") for line in lines) and len(lines) == 2


@pytest.mark.parametrize("share", [True, False])
def test_changed_byte_of_the_prompts_is_named(run, share):
    run.share = share
    flip(run.prompts, 20)
    (line,) = run.wrong()
    assert line.startswith(f"dataset {run.name}: sha256:") and run.staged.sha256 in line


def test_dataset_of_other_rows_than_planned_is_named(run):
    run.planned = run.planned.model_copy(update={"sha256": "0" * 64})
    (line,) = run.wrong()
    assert line.startswith("a mine-c1-r1: dataset: sha256:") and "plan.json" in line and "dataset.json" in line


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda data: data.update(rows=7), "rows"),
        (lambda data: data.update(bytes=7), "bytes"),
        (lambda data: data["prompt_bytes"]["counts"].append(1), "rows"),
        (lambda data: data["source"].update(file="other.jsonl"), "name"),
        (lambda data: data.update(name="other"), "name"),
    ],
)
def test_changed_fact_of_the_manifest_is_named(run, change, what):
    edit(run.manifest, change)
    assert any(f": {what}: " in line for line in run.wrong())


def test_missing_manifest_and_missing_shared_prompts_are_named(run):
    run.prompts.unlink()
    (line,) = run.wrong()
    assert "prompts.jsonl" in line and "share_prompts" in line
    run.share = False
    assert run.wrong() == []
    run.manifest.unlink()
    (line,) = run.wrong()
    assert line.startswith("a mine-c1-r1:") and "dataset.json" in line
