"""Restore what was deleted from ledger and cache, and find changed environments and outdated records, which Snakemake does not."""

import contextlib
import shutil
import sys
from pathlib import Path
from typing import Any

from servemark.config.model import Config
from servemark.config.restarts import starts
from servemark.environments import images
from servemark.environments.build import MARKER, is_changed
from servemark.errors import EnvironmentRefused, WeightsRefused
from servemark.measurement.ledger import Ledger, is_keepable
from servemark.progress import Progress
from servemark.records import Environment, Manifest, Measurement, Plan, Search
from servemark.run.outdated import is_outdated
from servemark.weights.manifest import verify


def make_good(run_folder: Path, config: Config) -> list[str]:
    """Store missing measurements again from their records, and delete records of models and environments that are gone or changed.

    Call it in the main process of a run that executes jobs, before Snakemake checks any file. Skip broken records: the stage that needs one
    rejects it. Return messages for the user.
    """
    ledger = Ledger(config.ledger_folder)
    used = config.deployments.values()
    messages = []
    if restored := sum(_restored(run_folder / "deployments" / name, ledger) for name in starts(config)):
        messages.append(f"{restored} measurement(s) were missing in the ledger. servemark stored them again from their records.")
    for name in outdated(run_folder, config):
        (run_folder / "deployments" / name / "plan.json").unlink()
        messages.append(
            f"Records of {name} do not match the configuration. servemark plans this deployment again "
            "and measures only what the ledger does not have. No action needed."
        )
    for name in sorted({deployment.model for deployment in used}):
        path = run_folder / "models" / name / "manifest.json"
        if (manifest := Manifest.read_or_none(path)) and _model_is_gone(manifest):
            path.unlink()
            messages.append(f"The files of the model {name} do not exist in {manifest.path}. servemark creates or downloads them again.")
    for name in sorted({deployment.environment for deployment in used}):
        path = run_folder / "environments" / name / "environment.json"
        environment = Environment.read_or_none(path)
        if environment and environment.origin == "lock" and not Path(environment.python).exists():
            # The rest of it counts as an unfinished build.
            Path(environment.prefix, MARKER).unlink(missing_ok=True)
            path.unlink()
            messages.append(f"The environment {name} does not exist in {environment.prefix}. servemark builds it again.")
        elif environment and environment.container and images.is_gone(environment.container):
            path.unlink()
            messages.append(f"The image of the environment {name} does not exist in {environment.prefix}. servemark fetches it again.")
        elif environment and _has_changed(environment, config):
            path.unlink()
            messages.append(
                f"Installed files of the environment {name} in {environment.prefix} have changed. servemark measures again what ran on it."
            )
    path = run_folder / "accuracy" / "environment.json"
    if (environment := Environment.read_or_none(path)) and not Path(environment.python).exists():
        Path(environment.prefix, MARKER).unlink(missing_ok=True)
        path.unlink()
        messages.append(f"The environment of lm-eval does not exist in {environment.prefix}. servemark builds it again.")
    return messages


def outdated(run_folder: Path, config: Config) -> list[str]:
    """Return the deployments whose records do not match the configuration; see :mod:`servemark.run.outdated`."""
    return [name for name in starts(config) if is_outdated(run_folder / "deployments" / name, config)]


class _Printed(Progress):
    """Progress of the main process, before Snakemake starts."""

    def say(self, text: str, **more: Any) -> None:
        super().say(text, **more)
        print(f"servemark: {text}", file=sys.stderr)


def _has_changed(environment: Environment, config: Config) -> bool:
    # An earlier servemark described it without its files; build_environment describes it again.
    if environment.files is None and environment.container is None:
        return False
    # If its interpreter does not run on this machine, start_cluster compares the files on the node.
    with contextlib.suppress(EnvironmentRefused):
        modules = config.cluster.modules if config.cluster else ()
        return is_changed(environment, config.cache, _Printed(None, "build_environment"), modules)
    return False


def _plan(deployment: Path) -> Plan | None:
    """Return the plan with the trials of its searches. Delete the record of a search if the record of one of its trials is missing."""
    plan, ended = Plan.read_or_none(deployment / "plan.json"), []
    for asked in plan.searches if plan else ():
        path = Search.path(deployment, asked.workload)
        search = Search.read_or_none(path)
        names = [f"{trial.point.load.name}{end}" for trial in search.trials for end in (".json", ".requests.json")] if search else []
        if all((deployment / "points" / name).exists() for name in names):
            ended += [search] if search else []
        else:
            path.unlink()
    return plan and plan.with_trials(ended)


def _restored(deployment: Path, ledger: Ledger) -> int:
    plan, count = _plan(deployment), 0
    for point in plan.points if plan else ():
        path = deployment / "points" / f"{point.load.name}.json"
        if ledger.has(point.key) or not (record := Measurement.read_or_none(path)):
            continue
        if record.key == point.key and is_keepable(record) and record.raw:
            # Its per-request results may be missing or differ.
            with contextlib.suppress(ValueError, FileNotFoundError):
                ledger.store(point.key, record, path.with_name(record.raw))
                count += 1
    return count


def _model_is_gone(manifest: Manifest) -> bool:
    """Return whether a created or downloaded model is missing. If a part of a created model is missing, delete all of it."""
    folder = Path(manifest.path)
    if manifest.source.startswith("builtin:"):
        try:
            verify(manifest, quick=True)
        except WeightsRefused:
            shutil.rmtree(folder, ignore_errors=True)
    return manifest.source.startswith(("builtin:", "hf:")) and not folder.is_dir()
