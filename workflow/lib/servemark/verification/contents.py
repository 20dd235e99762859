"""The records of a run, from its folder or its archive's, with every one that cannot be read named instead of raised."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from servemark.errors import ServemarkError
from servemark.records import (
    Accounting,
    EnvironmentCheck,
    Fabric,
    Hardware,
    Manifest,
    Measurement,
    Plan,
    PlannedPoint,
    RecordT,
    Startup,
    Stopped,
    Timeline,
)
from servemark.report import attempts_section, table, timelines


@dataclass(frozen=True)
class PointFiles:
    """A planned load point, its record and the place of its per-request results."""

    point: PlannedPoint
    record: Measurement
    raw: Path


@dataclass
class Contents:
    """What a run left. ``missing`` are names of planned points without a record; ``wrong`` what could not be read."""

    folder: Path
    config: dict[str, Any] = field(default_factory=dict)
    hardware: Hardware | None = None
    checks: dict[str, EnvironmentCheck] = field(default_factory=dict)
    plans: dict[str, Plan] = field(default_factory=dict)
    fabrics: dict[str, Fabric] = field(default_factory=dict)
    startups: dict[str, Startup] = field(default_factory=dict)
    stopped: dict[str, Stopped] = field(default_factory=dict)
    accounts: dict[str, Accounting] = field(default_factory=dict)
    manifests: dict[str, Manifest] = field(default_factory=dict)
    attempts: list[attempts_section.Attempt] = field(default_factory=list)
    rejected: list[Measurement] = field(default_factory=list)
    timelines: dict[tuple[str, str], Timeline] = field(default_factory=dict)
    points: list[PointFiles] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    @property
    def run(self) -> str:
        """The run's name."""
        return str(self.config.get("run", self.folder.name))

    @property
    def records(self) -> list[Measurement]:
        """Every measurement's record, as it states itself."""
        return [item.record for item in self.points]


def read(folder: Path) -> Contents:
    """Everything that tables and figures are made from."""
    found = Contents(folder)
    found.config = _config(found)
    found.hardware = _record(found, Hardware, "hardware.json")
    for path in sorted(folder.glob("environments/*/check.json")):
        if check := _record(found, EnvironmentCheck, path.relative_to(folder).as_posix()):
            found.checks[check.name] = check
    for path in sorted(folder.glob("models/*/manifest.json")):
        if manifest := _record(found, Manifest, path.relative_to(folder).as_posix()):
            found.manifests[manifest.name] = manifest
    for path in sorted(folder.glob("rejected/*/*.json")):
        name = path.relative_to(folder).as_posix()
        if not name.endswith(".requests.json") and (record := _record(found, Measurement, name)):
            found.rejected.append(record)
    # What an earlier configuration left beside the planned ones is in no table.
    present = {path.parent.name for path in folder.glob("deployments/*/plan.json")}
    # In the configuration's order, as the page has them.
    for name in found.config.get("deployments") or sorted(present):
        place = f"deployments/{name}"
        plan = _record(found, Plan, f"{place}/plan.json", needed=True)
        if plan is None:
            continue
        if plan.deployment != name:
            found.wrong.append(f"{place}/plan.json is the plan of deployment {plan.deployment!r}.")
            continue
        found.plans[name] = plan
        _into(found, Fabric, found.fabrics, name, "fabric.json")
        _into(found, Startup, found.startups, name, "startup.json")
        _into(found, Stopped, found.stopped, name, "stopped.json")
        _into(found, Accounting, found.accounts, name, "accounting.json")
        found.attempts += attempts_section.read(folder / place)
        for point in plan.points:
            _point(found, place, name, point)
    return found


def _into(found: Contents, kind: type[RecordT], into: dict[str, RecordT], deployment: str, file: str) -> None:
    if record := _record(found, kind, f"deployments/{deployment}/{file}"):
        into[deployment] = record


def _point(found: Contents, place: str, deployment: str, point: PlannedPoint) -> None:
    name = f"{place}/points/{point.name}.json"
    if locate(found.folder, name) is None:
        found.missing.append(f"{deployment}/{point.name}")
        return
    record = _record(found, Measurement, name)
    if record is None:
        return
    if (record.deployment, record.point) != (deployment, point.name):
        found.wrong.append(f"{name} is the record of {record.deployment}/{record.point}.")
        return
    try:
        table.topology(record)
    except (ValueError, TypeError, AttributeError) as error:
        found.wrong.append(f"{name}: the parts of its key tell no topology: {error}")
        return
    found.points.append(PointFiles(point, record, found.folder / place / "points" / f"{point.name}.requests.json"))
    beside = timelines.place(record)
    timeline = _record(found, Timeline, beside.as_posix()) if beside else None
    if timeline and timelines.belongs(timeline, record):
        found.timelines[deployment, point.name] = timeline


def locate(folder: Path, name: str) -> Path | None:
    """The file of this name, if it is there and in ``folder``: a name may come from a record that nobody vouches for."""
    parts = PurePosixPath(name).parts
    if name.startswith("/") or ".." in parts or "\0" in name:
        return None
    path = folder / name
    return path if path.is_file() else None


def _config(found: Contents) -> dict[str, Any]:
    path = locate(found.folder, "config.json")
    if path is None:
        found.wrong.append("config.json is missing: it says what was asked for and which thresholds decided.")
        return {}
    try:
        config = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        found.wrong.append(f"config.json cannot be read: {error}")
        return {}
    if not isinstance(config, dict) or not isinstance(config.get("deployments", {}), dict):
        found.wrong.append("config.json is not a configuration.")
        return {}
    return config


def _record(found: Contents, kind: type[RecordT], name: str, needed: bool = False) -> RecordT | None:
    path = locate(found.folder, name)
    if path is None:
        if needed:
            found.wrong.append(f"{name} is missing.")
        return None
    try:
        return kind.read(path)
    except ServemarkError as error:
        found.wrong.append(error.what.replace(f"{found.folder}/", ""))
    except RecursionError:
        found.wrong.append(f"{name} cannot be read: it is nested too deeply.")
    return None
