"""``servemark remeasure``: results of chosen points are set aside, and everything else stays."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from servemark.cli import main as cli
from servemark.measurement.ledger import Ledger
from servemark.records import Measurement
from servemark.run import run_lock


@pytest.fixture
def folder(run, monkeypatch):
    """Return the folder of a run with records, per-request results, a ledger and rejections of one point."""
    monkeypatch.chdir(run.root)
    ledger = Ledger(run.folder / "ledger")
    for path in sorted(run.folder.glob("deployments/plain/points/*-r?.json")):
        record = Measurement.read(path)
        entry = ledger.root / record.key[:2] / record.key
        entry.mkdir(parents=True, exist_ok=True)
        (entry / "measurement.json").write_text(record.to_json())
    for name in ("chat-c1-r1.1.json", "chat-c1-r1.1.raw", "chat-c1-r10.1.json"):
        run.write(f"rejected/plain/{name}", "{}")
    return run.folder


def files(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and "replaced" not in path.parts}


def test_chosen_point_is_set_aside_with_entry_and_rejections(folder, capsys):
    before, record = files(folder), Measurement.read(folder / "deployments/plain/points/chat-c1-r1.json")
    assert cli.main(["remeasure", "demo", "plain/chat-c1-r1"]) == 0
    gone = before - files(folder)
    assert gone >= {
        "deployments/plain/points/chat-c1-r1.json",
        "deployments/plain/points/chat-c1-r1.requests.json",
        "rejected/plain/chat-c1-r1.1.json",
        "rejected/plain/chat-c1-r1.1.raw",
    }
    assert {path for path in gone if "ledger" not in path} == {path for path in gone if "chat-c1-r1." in path}
    (place,) = folder.glob("ledger/replaced/*")
    assert {path.name for path in place.iterdir()} == {
        record.key, "chat-c1-r1.json", "chat-c1-r1.requests.json", "chat-c1-r1.1.json", "chat-c1-r1.1.raw",
    }  # fmt: skip
    assert str(place.name) in capsys.readouterr().out
    assert not (Path.cwd() / ".snakemake" / "servemark-owner.json").exists(), "the checkout is free again"


def test_pattern_takes_all_repetitions(folder):
    assert cli.main(["remeasure", "demo", "plain/chat-c2-*"]) == 0
    left = {path.name for path in (folder / "deployments/plain/points").glob("*.json")}
    assert left and not [name for name in left if name.startswith("chat-c2-")]


@pytest.mark.parametrize("arguments", [["demo", "plain/chat-c99-r1"], ["demo", "plain/chat-c1-r1", "x/*"], ["other", "plain/*"]])
def test_unknown_run_or_point_changes_nothing(folder, arguments):
    before = files(folder)
    assert cli.main(["remeasure", *arguments]) == 2
    assert files(folder) == before and not list(folder.glob("ledger/replaced/*"))


def test_checkout_with_a_run_is_refused(folder):
    run_lock.claim(Path.cwd(), ["snakemake"])
    record = Path.cwd() / ".snakemake" / "servemark-owner.json"
    before = files(folder)
    owner = json.loads(record.read_text())
    assert owner["pid"] == os.getpid()
    assert cli.main(["remeasure", "demo", "plain/*"]) == 2
    assert files(folder) == before and record.exists()


def test_point_of_a_killed_command_can_be_chosen_again(folder):
    """Its ledger entry was moved, its record was not."""
    record = Measurement.read(folder / "deployments/plain/points/chat-c1-r1.json")
    Ledger(folder / "ledger").take_out(record.key, folder)
    assert cli.main(["remeasure", "demo", "plain/chat-c1-r1"]) == 0
    assert not (folder / "deployments/plain/points/chat-c1-r1.json").exists()
