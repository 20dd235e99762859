"""Restore what was deleted from ledger and cache: Snakemake sees only the records."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from servemark.config.model import Config
from servemark.environments.build import MARKER
from servemark.errors import ServemarkError, WeightsRefused
from servemark.measurement.ledger import Ledger, is_keepable
from servemark.records import Environment, Manifest, Measurement, Plan
from servemark.weights.manifest import verify

T = TypeVar("T")


def make_good(run_folder: Path, config: Config) -> list[str]:
    """Store lost measurements again from their records, and remove records of models and environments that are gone from the cache.

    Call it in the main process of a run that executes jobs, before Snakemake looks at any file; it returns messages for the user.
    """
    ledger = Ledger(config.ledger_folder)
    used = config.deployments.values()
    said = []
    if restored := sum(_restored(run_folder / "deployments" / name, ledger) for name in config.deployments):
        said.append(f"{restored} measurement(s) were gone from the ledger; they are stored again from their records.")
    for name in sorted({deployment.model for deployment in used}):
        path = run_folder / "models" / name / "manifest.json"
        if (manifest := _read(Manifest.read, path)) and _model_is_gone(manifest):
            path.unlink()
            said.append(f"The files of the model {name} are gone ({manifest.path}); they are made or fetched again.")
    for name in sorted({deployment.environment for deployment in used}):
        path = run_folder / "environments" / name / "environment.json"
        environment = _read(Environment.read, path)
        if environment and environment.origin == "lock" and not Path(environment.python).exists():
            # What is left of it counts as half-built.
            Path(environment.prefix, MARKER).unlink(missing_ok=True)
            path.unlink()
            said.append(f"The environment {name} is gone ({environment.prefix}); it is built again.")
    return said


def _read(read: Callable[[Path], T], path: Path) -> T | None:
    """Return the record; None without one. The stage that reads a broken one refuses it."""
    try:
        return read(path)
    except ServemarkError:
        return None


def _restored(deployment: Path, ledger: Ledger) -> int:
    plan, count = _read(Plan.read, deployment / "plan.json"), 0
    for point in plan.points if plan else ():
        path = deployment / "points" / f"{point.load.name}.json"
        if ledger.has(point.key) or not (record := _read(Measurement.read, path)):
            continue
        if record.key == point.key and is_keepable(record) and record.raw:
            # Its per-request results may be gone or differ.
            with contextlib.suppress(ValueError, FileNotFoundError):
                ledger.store(point.key, record, path.with_name(record.raw))
                count += 1
    return count


def _model_is_gone(manifest: Manifest) -> bool:
    """Return whether a model that a rule made or fetched is gone. If a part of a made one is gone, remove all of it."""
    folder = Path(manifest.path)
    if manifest.source.startswith("builtin:"):
        try:
            verify(manifest, quick=True)
        except WeightsRefused:
            shutil.rmtree(folder, ignore_errors=True)
    return manifest.source.startswith(("builtin:", "hf:")) and not folder.is_dir()
