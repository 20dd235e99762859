"""Read what a run left behind, from its folder or from its unpacked archive."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from servemark import records
from servemark.machine import git_state
from servemark.records import Measurement, RecordT
from servemark.report import attempts_section, columns, timelines
from servemark.report.data import PointFiles, RunRecords, broken, locate, missing


def gather(run_folder: Path) -> RunRecords:
    """Return everything that the page shows, read from ``results/RUN``.

    Raises:
        ServemarkError: a record is missing or damaged.
    """
    found = read(run_folder, strict=True)
    return found.with_distributions(found.measurements)


def read(folder: Path, *, strict: bool = False) -> RunRecords:
    """Read every record that page, table and archive are made of. Points and deployments of an earlier configuration are left out.

    Args:
        strict: of a run that is complete.

    Raises:
        ServemarkError: with ``strict``, a record is missing or damaged; a planned point may have none.
    """
    found = RunRecords(folder=folder)
    found.config = _config(found)
    found.run = str(found.config.get("run", folder.name))
    found.hardware = found.take(records.Hardware, "hardware.json", needed=strict)
    present = sorted(path.parent.name for path in folder.glob("deployments/*/plan.json"))
    for name in found.config.get("deployments") or present:
        _deployment(found, name)
    for name in sorted({plan.environment for plan in found.plans.values()}):
        _into(found, records.Environment, found.environments, f"environments/{name}/environment.json", strict)
        _into(found, records.EnvironmentCheck, found.checks, f"environments/{name}/check.json", strict)
    for name in sorted({plan.model for plan in found.plans.values()}):
        _into(found, records.Manifest, found.manifests, f"models/{name}/manifest.json", strict)
    rejected = (path for path in sorted(folder.glob("rejected/*/*.json")) if not path.name.endswith(".requests.json"))
    found.rejected = [record for path in rejected if (record := found.take(Measurement, path.relative_to(folder).as_posix()))]
    if strict and found.wrong:
        raise found.wrong[0]
    return found


def _into(found: RunRecords, kind: type[RecordT], into: dict[str, RecordT], name: str, needed: bool = False) -> None:
    """Take a record over under the name of its folder."""
    if record := found.take(kind, name, needed=needed):
        into[Path(name).parent.name] = record


def _deployment(found: RunRecords, name: str) -> None:
    place = f"deployments/{name}"
    plan = found.take(records.Plan, f"{place}/plan.json", needed=True)
    if plan is None:
        return
    if plan.deployment != name:
        found.wrong.append(broken(f"{place}/plan.json is the plan of deployment {plan.deployment!r}."))
        return
    found.plans[name] = plan
    _into(found, records.Fabric, found.fabrics, f"{place}/fabric.json")
    _into(found, records.Startup, found.startups, f"{place}/startup.json")
    _into(found, records.Stopped, found.stopped, f"{place}/stopped.json")
    _into(found, records.Accounting, found.accounts, f"{place}/accounting.json")
    found.attempts += attempts_section.read(found.folder / place)
    for path in sorted((found.folder / place).glob(f"attempts/*/{git_state.NAME}")):
        if noted := found.take(records.Sources, path.relative_to(found.folder).as_posix()):
            found.sources = list(dict.fromkeys([*found.sources, noted.model_copy(update={"configuration": ()})]))
    for point in plan.points:
        _point(found, place, name, point)


def _point(found: RunRecords, place: str, deployment: str, point: records.PlannedPoint) -> None:
    load = point.load.name
    name = f"{place}/points/{load}.json"
    if locate(found.folder, name) is None:
        found.missing.append(f"{deployment}/{load}")
        return
    record = found.take(Measurement, name)
    if record is None:
        return
    if (record.deployment, record.load.name) != (deployment, load):
        found.wrong.append(broken(f"{name} is the record of {record.deployment}/{record.load.name}."))
        return
    try:
        columns.topology(record)
    except (ValueError, TypeError, AttributeError) as error:
        found.wrong.append(broken(f"{name}: its key_parts hold no topology: {error}"))
        return
    found.measurements.append(record)
    found.points.append(PointFiles(point, found.folder / place / "points" / f"{load}.requests.json"))
    recorded = timelines.place(record)
    timeline = found.take(records.Timeline, recorded.as_posix()) if recorded else None
    if timeline and timelines.belongs(timeline, record):
        found.timelines[deployment, load] = timeline


def _config(found: RunRecords) -> dict[str, Any]:
    path = locate(found.folder, "config.json")
    if path is None:
        found.wrong.append(missing("config.json"))
        return {}
    try:
        config = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        found.wrong.append(broken(f"config.json cannot be read: {error}"))
        return {}
    if not isinstance(config, dict) or not isinstance(config.get("deployments", {}), dict):
        found.wrong.append(broken("config.json is not a configuration."))
        return {}
    return config
