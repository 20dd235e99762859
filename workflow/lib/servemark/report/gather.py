"""Collects a run's records for the page."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from servemark import __version__
from servemark.records import (
    Accounting,
    Environment,
    EnvironmentCheck,
    Fabric,
    Hardware,
    Manifest,
    Measurement,
    Plan,
    RecordT,
    Startup,
    Stopped,
)
from servemark.report.data import PageData


def gather(run_folder: Path) -> PageData:
    """Everything the page shows, read from ``results/RUN``.

    Raises:
        ServemarkError: a record is damaged.
    """
    config = json.loads((run_folder / "config.json").read_text())
    deployments = [run_folder / "deployments" / name for name in config["deployments"]]
    environments = {d["environment"] for d in config["deployments"].values()}
    models = {d["model"] for d in config["deployments"].values()}
    return PageData(
        run=config["run"],
        config=config,
        hardware=Hardware.read(run_folder / "hardware.json"),
        environments={
            name: Environment.read(run_folder / "environments" / name / "environment.json")
            for name in sorted(environments)
        },
        checks={
            name: EnvironmentCheck.read(run_folder / "environments" / name / "check.json")
            for name in sorted(environments)
        },
        manifests={name: Manifest.read(run_folder / "models" / name / "manifest.json") for name in sorted(models)},
        plans=_each(Plan, deployments, "plan.json"),
        startups=_each(Startup, deployments, "startup.json"),
        stopped=_each(Stopped, deployments, "stopped.json"),
        fabrics=_each(Fabric, deployments, "fabric.json"),
        accounts=_each(Accounting, deployments, "accounting.json"),
        measurements=_measurements(run_folder, config),
        rejected=[
            Measurement.read(path)
            for path in sorted(run_folder.glob("rejected/*/*.json"))
            if not path.name.endswith(".requests.json")
        ],
        version=__version__,
        commit=commit(),
        commands=(
            f"# config.json is in the archive: put it at results/{config['run']}/config.json of a checkout of {commit()}",
            "make setup",
            f".venv/bin/snakemake --profile profiles/local --configfile results/{config['run']}/config.json",
        ),
    )


def _each(kind: type[RecordT], folders: list[Path], name: str) -> dict[str, RecordT]:
    return {folder.name: kind.read(folder / name) for folder in folders if (folder / name).exists()}


def _measurements(run_folder: Path, config: dict) -> list[Measurement]:
    """The records of the points that are planned now; what an earlier configuration left beside them is not shown."""
    found = []
    for name in config["deployments"]:
        folder = run_folder / "deployments" / name
        for point in Plan.read(folder / "plan.json").points:
            found.append(Measurement.read(folder / "points" / f"{point.name}.json"))
    return found


def commit() -> str:
    """The workflow's git commit, with a mark when the tree differs from it; words when there is no git."""
    try:
        text = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return "not a git checkout"
    return text.strip()
