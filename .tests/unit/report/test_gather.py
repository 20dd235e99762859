"""Reading the records of a run that the present configuration plans."""

from __future__ import annotations

import json

import pytest

from builders import report_data
from servemark.errors import ServemarkError
from servemark.records import Accounting, Fabric, Sources, Stopped
from servemark.report import gather
from servemark.report.page import render


@pytest.fixture
def run_folder(tmp_path, monkeypatch):
    """Folder results/demo of the demo run, without git on the PATH."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    data = report_data.demo()
    folder = tmp_path / "results" / "demo"
    folder.mkdir(parents=True)
    deployments = {name: {"model": "tiny", "environment": "cpu"} for name in data.plans}
    (folder / "config.json").write_text(json.dumps({**data.config, "run": "demo", "deployments": deployments}))
    data.hardware.write(folder / "hardware.json")
    data.environments["cpu"].write(folder / "environments" / "cpu" / "environment.json")
    data.checks["cpu"].write(folder / "environments" / "cpu" / "check.json")
    data.manifests["tiny"].write(folder / "models" / "tiny" / "manifest.json")
    for name, plan in data.plans.items():
        plan.write(folder / "deployments" / name / "plan.json")
    for name, startup in data.startups.items():
        startup.write(folder / "deployments" / name / "startup.json")
    for record in data.measurements:
        record.write(folder / "deployments" / record.deployment / "points" / f"{record.load.name}.json")
    Fabric(deployment="plain").write(folder / "deployments" / "plain" / "fabric.json")
    Accounting(deployment="plain", scheduler="none").write(folder / "deployments" / "plain" / "accounting.json")
    Stopped(deployment="plain", seconds=2.0).write(folder / "deployments" / "plain" / "stopped.json")
    return folder


def test_all_records_of_run_are_gathered(run_folder):
    expected = report_data.demo()
    data = gather.gather(run_folder)
    assert data.run == "demo" and data.hardware == expected.hardware
    assert data.environments == expected.environments and data.checks == expected.checks
    assert data.manifests == expected.manifests
    assert data.plans == expected.plans and data.startups == expected.startups
    assert data.measurements == sorted(expected.measurements, key=lambda m: m.deployment)
    assert data.fabrics == {"plain": Fabric(deployment="plain")}
    assert data.accounts == {"plain": Accounting(deployment="plain", scheduler="none")}
    assert list(data.stopped) == ["plain"], "a missing record is absent"
    assert data.rejected == [] and data.commit == "not recorded"
    assert "results/demo/config.json" in render(data)


def test_points_of_earlier_configuration_are_ignored(run_folder):
    left = report_data.measurement("plain", 99)
    left.write(run_folder / "deployments" / "plain" / "points" / f"{left.load.name}.json")
    rejected = report_data.invalid("plain", concurrency=4)
    rejected.write(run_folder / "rejected" / "plain" / f"{rejected.load.name}.1.json")
    (run_folder / "rejected" / "plain" / f"{rejected.load.name}.1.raw").write_text("{}")
    data = gather.gather(run_folder)
    assert left not in data.measurements
    assert data.rejected == [rejected]


def test_damaged_record_is_named(run_folder):
    (run_folder / "hardware.json").write_text("{")
    with pytest.raises(ServemarkError, match=r"hardware\.json"):
        gather.gather(run_folder)


def test_commits_come_from_attempts(run_folder):
    for number, commit in enumerate(("1f0c2d9a" * 5, "2e" * 20), 1):
        note = run_folder / "deployments" / "plain" / "attempts" / f"00{number}" / "sources.json"
        Sources(servemark="0.1.0", commit=commit, dirty=number == 2).write(note)
    data = gather.gather(run_folder)
    assert data.commit == "1f0c2d9a1f0c, 2e2e2e2e2e2e-dirty"
    assert render(data, bundle="").count(data.commit) == 2
