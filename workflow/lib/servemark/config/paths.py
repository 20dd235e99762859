"""Check the folders of models and environments, and the chat templates, that a configuration names."""

import os
import platform
import sys
from collections.abc import Iterator
from pathlib import Path

from servemark.config.model import Config
from servemark.config.problems import Problem, shortened
from servemark.environments import lockfiles, options, own_lock
from servemark.errors import EnvironmentRefused, WeightsRefused
from servemark.weights import hub_source, manifest
from servemark.weights.architecture import Architecture


def problems(config: Config, run: Path | None = None) -> list[Problem]:
    """Return problems of the folders and files that this machine reads, without hashing a file.

    Args:
        config: an expanded configuration.
        run: the results of the run; models and environments with a record there are not checked again.
    """
    found = []
    for name, folder in _models(config) if _on_this_machine(config, "stage_on") else ():
        staged = run and (run / "models" / name / "manifest.json").exists()
        if not staged and (fault := _model_fault(folder, dummy=config.models[name].load_format == "dummy")):
            found.append(Problem(("models", name, "source"), fault))
    for name, prefix in _prefixes(config) if _on_this_machine(config, "build_on") else ():
        python, described = prefix / "bin" / "python", run and (run / "environments" / name / "environment.json").exists()
        if not described and not os.access(python, os.X_OK):
            what = "you may not execute" if os.path.lexists(python) else "there is no"
            found.append(Problem(("environments", name, "prefix"), f"{what} {shortened(str(python), 200)}"))
    for name in sorted({deployment.environment for deployment in config.deployments.values()}):
        asked, described = config.environments[name].lock, run and (run / "environments" / name / "environment.json").exists()
        if asked and own_lock.is_path(asked) and not described and _on_this_machine(config, "build_on") and (fault := _lock_fault(asked)):
            found.append(Problem(("environments", name, "lock"), fault))
    for name, deployment in config.deployments.items() if _on_this_machine(config, "stage_on") else ():
        if wrong := options.missing_file(deployment.options):
            found.append(Problem(("deployments", name, "options", wrong.option), wrong.text))
    return found


def _lock_fault(asked: str) -> str | None:
    try:
        lockfiles.own(asked, lockfiles.CHECKOUT / "envs", sys.version_info[:2], platform.machine())
    except EnvironmentRefused as error:
        return f"{error.what} {error.do}"
    return None


def _on_this_machine(config: Config, where: str) -> bool:
    return config.cluster is None or getattr(config.cluster, where) == "login"


def _models(config: Config) -> Iterator[tuple[str, Path]]:
    for name in sorted({deployment.model for deployment in config.deployments.values()}):
        source = config.models[name].source
        if not source.startswith(("builtin:", hub_source.PREFIX)):
            yield name, Path(source).absolute()


def _prefixes(config: Config) -> Iterator[tuple[str, Path]]:
    for name in sorted({deployment.environment for deployment in config.deployments.values()}):
        if prefix := config.environments[name].prefix:
            yield name, prefix.absolute()


def _model_fault(folder: Path, *, dummy: bool) -> str | None:
    if not os.path.isdir(folder):
        return f"there is no folder {shortened(str(folder), 200)}"
    try:
        Architecture.from_config(manifest.examine(folder, dummy=dummy).config)
    except WeightsRefused as error:
        return " ".join(part for part in (error.what, error.look and f"Look at {error.look}.", error.do) if part)
    return None
