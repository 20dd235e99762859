"""The folder of a run as its stages leave it, from the records of the report's builders."""

from __future__ import annotations

import json
from pathlib import Path

from servemark.records import Record
from servemark.report.gather import RunRecords


def written(data: RunRecords, folder: Path) -> Path:
    """Write the records that a reader of the results needs; return the folder."""

    def write(name: str, record: Record) -> None:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(record.to_json(), encoding="utf-8")  # Record.write waits for the disk

    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(dict(data.config)), encoding="utf-8")
    write("hardware.json", data.machine)
    for name, environment in data.environments.items():
        write(f"environments/{name}/environment.json", environment)
        write(f"environments/{name}/check.json", data.checks[name])
    for name, manifest in data.manifests.items():
        write(f"models/{name}/manifest.json", manifest)
    for name, plan in data.plans.items():
        write(f"deployments/{name}/plan.json", plan)
    for item in data.measurements:
        write(f"deployments/{item.deployment}/points/{item.load.name}.json", item)
    return folder
