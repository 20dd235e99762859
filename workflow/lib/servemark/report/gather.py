"""Collects a run's records for the page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from servemark import __version__
from servemark.machine import git_state
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
    Timeline,
    record_files,
)
from servemark.report import attempts_section, distributions, excerpts, timelines
from servemark.report.data import PageData
from servemark.report.gaps import failures


def gather(run_folder: Path) -> PageData:
    """Everything the page shows, read from ``results/RUN``.

    Raises:
        ServemarkError: a record is damaged.
    """
    config = json.loads((run_folder / "config.json").read_text())
    deployments = [run_folder / "deployments" / name for name in config["deployments"]]
    environments = {d["environment"] for d in config["deployments"].values()}
    models = {d["model"] for d in config["deployments"].values()}
    measurements = _measurements(run_folder, config)
    # As noted when the deployments were started: the checkout may be another one by now.
    ran_from = git_state.words(git_state.of_attempts(deployments))
    data = PageData(
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
        measurements=measurements,
        rejected=[
            Measurement.read(path)
            for path in sorted(run_folder.glob("rejected/*/*.json"))
            if not path.name.endswith(".requests.json")
        ],
        version=__version__,
        commit=ran_from,
        commands=(
            f"# config.json is in the archive: put it at results/{config['run']}/config.json of a checkout of {ran_from}",
            "make setup",
            f".venv/bin/snakemake --profile profiles/local --configfile results/{config['run']}/config.json",
        ),
        attempts=[attempt for folder in deployments for attempt in attempts_section.read(folder)],
        distributions=distributions.distributions([(item, _raw(run_folder, item)) for item in measurements]),
        timelines=_timelines(run_folder, measurements),
    )
    return replace(data, excerpts=excerpts.of_failures(failures(data), run_folder))


def _raw(run_folder: Path, item: Measurement) -> Path:
    return run_folder / "deployments" / item.deployment / "points" / f"{item.point}.requests.json"


def _timelines(run_folder: Path, measurements: Sequence[Measurement]) -> dict[tuple[str, str], Timeline]:
    """What was recorded beside the measurements; those of another run's attempts stay with that run."""
    found = {}
    for item in measurements:
        place = timelines.place(item)
        if place and (run_folder / place).exists():
            timeline = Timeline.read(run_folder / place)
            if timelines.belongs(timeline, item):
                found[item.deployment, item.point] = timeline
    return found


def _each(kind: type[RecordT], folders: list[Path], name: str) -> dict[str, RecordT]:
    return {folder.name: kind.read(folder / name) for folder in folders if (folder / name).exists()}


def _measurements(run_folder: Path, config: dict[str, Any]) -> list[Measurement]:
    """The records of the points that are planned now; what an earlier configuration left beside them is not shown."""
    return [Measurement.read(path) for path in record_files(run_folder, config["deployments"])]
