"""Check the files and folders that a configuration names: models, environments, images, wheels and chat templates."""

import contextlib
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from servemark.config.asked_checks import unreadable
from servemark.config.container import Container
from servemark.config.model import Config
from servemark.config.problems import Loc, Problem, shortened
from servemark.config.workload import StagedWorkload
from servemark.containers import runtimes
from servemark.datasets import rows
from servemark.environments import build, interpreter, lockfiles, options, own_lock, wheels
from servemark.errors import EnvironmentRefused, WeightsRefused
from servemark.weights import chat_template, hub_source, manifest
from servemark.weights.architecture import Architecture

_CACHED = "models--"
"""How the name of a model's folder in a hub cache begins (huggingface_hub, ``repo_folder_name``)."""


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
        found += _template_faults(config, name, folder)
    found += _hub_cache_faults(config, run)
    found += _dataset_faults(config, run)
    found += unreadable(config)
    published = run and (run / "published.json").exists()
    if config.publish and not published and shutil.which(config.publish[0]) is None:
        found.append(Problem(("publish",), f"this machine has no program {shortened(config.publish[0], 200)} that you may execute"))
    for name, prefix in _prefixes(config) if _on_this_machine(config, "build_on") else ():
        described = run and (run / "environments" / name / "environment.json").exists()
        if not described and (fault := _prefix_fault(prefix / "bin" / "python", modules=bool(config.cluster and config.cluster.modules))):
            found.append(Problem(("environments", name, "prefix"), fault))
    for name in sorted({deployment.environment for deployment in config.deployments.values()}):
        asked, described = config.environments[name].lock, run and (run / "environments" / name / "environment.json").exists()
        if asked and own_lock.is_path(asked) and not described and _on_this_machine(config, "build_on") and (fault := _lock_fault(asked)):
            found.append(Problem(("environments", name, "lock"), fault))
    for name, deployment in config.deployments.items() if _on_this_machine(config, "stage_on") else ():
        if wrong := options.missing_file(deployment.options):
            found.append(Problem(("deployments", name, "options", wrong.option), wrong.text))
    for name, container in containers(config):
        if _on_this_machine(config, "build_on") and not (run and (run / "environments" / name / "environment.json").exists()):
            found += _container_faults(("environments", name, "container"), container, config)
    for name, lock, folder in _bundles(config) if _on_this_machine(config, "build_on") else ():
        described = run and (run / "environments" / name / "environment.json").exists()
        if not described and (fault := _bundle_fault(config, lock, folder)):
            found.append(Problem(("environments", name, "wheels"), fault))
    return found


def _dataset_faults(config: Config, run: Path | None) -> Iterator[Problem]:
    """Yield the rows that cannot be used. The main process's machine stages datasets, so it can read their files."""
    for name in used_workloads(config):
        workload = config.workloads[name]
        # Rows of the hub are read when they are there.
        if not isinstance(workload, StagedWorkload) or workload.dataset.kind == "hf":
            continue
        source, recorded = workload.dataset, workload.output_tokens == "recorded"
        record = run and run / "datasets" / source.name / "dataset.json"
        with contextlib.suppress(OSError):
            if record and record.stat().st_mtime >= os.stat(source.path).st_mtime:
                continue
        # The ends of a search have as many requests as its loads need, which only the plan knows.
        requests = 0 if workload.searched else max(workload.requests_of(1))
        limit = _least_context(config, name)
        for fault in rows.faults(source, recorded=recorded, chat=workload.api == "chat", requests=requests, limit=limit):
            yield Problem(("workloads", name, "dataset", source.kind), fault)


def _least_context(config: Config, workload: str) -> int | None:
    """Return the least `max-model-len` of the deployments of a workload, tokens; None if no option states a number."""
    users = [one for one in config.deployments.values() if workload in (one.workloads or config.workloads)]
    given = [one.options.get("max-model-len") for one in users]
    return min((tokens for tokens in given if isinstance(tokens, int) and tokens > 0), default=None)


def _hub_cache_faults(config: Config, run: Path | None) -> Iterator[Problem]:
    """Yield a ``hub_cache`` that is missing or the folder above a cache, unless all models and datasets have a record."""
    if config.hub_cache is None or not _on_this_machine(config, "stage_on") or not (fault := _hub_cache_fault(config.hub_cache.absolute())):
        return
    records = [Path("models", deployment.model, "manifest.json") for deployment in config.deployments.values()]
    workloads = [config.workloads[name] for name in used_workloads(config)]
    records += [Path("datasets", one.dataset.name, "dataset.json") for one in workloads if isinstance(one, StagedWorkload)]
    if run is None or not all((run / record).exists() for record in records):
        yield Problem(("hub_cache",), fault)


def _hub_cache_fault(folder: Path) -> str | None:
    if not folder.is_dir():
        return f"there is no folder {shortened(str(folder), 200)}"
    # HF_HOME is the folder above the cache. Without this check, the run would find no model there and download it again.
    if not any(folder.glob("models--*")) and any(folder.glob("hub/models--*")):
        return f"{shortened(str(folder), 200)} is not a cache but the folder above one; write {shortened(str(folder / 'hub'), 200)}"
    return None


def _template_faults(config: Config, model: str, folder: Path) -> Iterator[Problem]:
    """Yield the workloads on the chat route for a model in a folder that has no chat template."""
    faults: dict[str, str] = {}
    for deployment in config.deployments.values():
        asks = [name for name in deployment.workloads or config.workloads if config.workloads[name].api == "chat"]
        if deployment.model == model and asks and os.path.isdir(folder) and (fault := chat_template.fault(folder, deployment.options)):
            faults |= dict.fromkeys(asks, fault)
    for name, fault in faults.items():
        yield Problem(("workloads", name, "api"), f"{fault}. {chat_template.REMEDY}")


def datasets(config: Config) -> Iterator[Loc]:
    """Yield the key of the file of each workload in use that has one."""
    for name in used_workloads(config):
        workload = config.workloads[name]
        if isinstance(workload, StagedWorkload):
            yield "workloads", name, "dataset", workload.dataset.kind


def used_workloads(config: Config) -> list[str]:
    """Return the workloads that a deployment measures."""
    return sorted({name for deployment in config.deployments.values() for name in deployment.workloads or config.workloads})


def _lock_fault(asked: str) -> str | None:
    try:
        lockfiles.own(asked, lockfiles.CHECKOUT / "envs", sys.version_info[:2], platform.machine())
    except EnvironmentRefused as error:
        return f"{error.what} {error.do}"
    return None


def _prefix_fault(python: Path, *, modules: bool) -> str | None:
    if not os.access(python, os.X_OK):
        # The prefix is the folder bin of an environment, or the interpreter in it.
        for folder in python.parents[1:3]:
            if folder.name == "bin" and os.access(folder / "python", os.X_OK):
                return f"must be the folder that holds bin/python; write {shortened(str(folder.parent), 200)}"
        what = "you may not execute" if os.path.lexists(python) else "there is no"
        return f"{what} {shortened(str(python), 200)}"
    # Modules of the cluster may bring vLLM. A folder `vllm` in the working folder is no package: it has no origin.
    try:
        if modules or interpreter.run_code(
            python, "import importlib.util as u; print(int(bool(getattr(u.find_spec('vllm'), 'origin', 0))))"
        ):
            return None
    except EnvironmentRefused as error:
        return f"{error.what} {error.do}"
    return f"{shortened(str(python), 200)} does not find vLLM; install it there, or set another `prefix`"


def containers(config: Config) -> Iterator[tuple[str, Container]]:
    """Yield the name and the container of each environment in use that has one."""
    for name in sorted({deployment.environment for deployment in config.deployments.values()}):
        if container := config.environments[name].container:
            yield name, container


def _container_faults(loc: Loc, container: Container, config: Config) -> Iterator[Problem]:
    image = container.image
    kind = runtimes.kind_of(image)
    if kind in ("file", "squashfs") and not os.path.isfile(image):
        yield Problem((*loc, "image"), f"there is no file {shortened(image, 200)}")
    elif kind == "folder" and not os.path.isdir(os.path.join(image, "usr")):
        why = (
            "the folder of no image, because it has no folder usr"
            if os.path.isdir(image)
            else "no folder, and no image file (.sif or .sqsh)"
        )
        yield Problem((*loc, "image"), f"{shortened(image, 200)} is {why}")
    elif kind != "registry" and not os.access(image, os.R_OK):
        yield Problem((*loc, "image"), f"you may not read {shortened(image, 200)}")
    elif kind in ("file", "squashfs") and not runtimes.begins_as_image(image):
        what = f"{shortened(image, 200)} is not a {'SIF' if kind == 'file' else 'squashfs'} image ({os.path.getsize(image):,} bytes)"
        yield Problem((*loc, "image"), f"{what}; make or copy the file again")
    # Modules of the cluster may bring the runtime, and its nodes may have other folders.
    if config.cluster is None:
        for number, bind in enumerate(container.binds):
            if not os.path.exists(source := bind.partition(":")[0]):
                yield Problem((*loc, "binds", number), f"{shortened(source, 200)} does not exist")
    if not (config.cluster and config.cluster.modules) and runtimes.choose(image, container.runtime) is None:
        programs = [runtimes.RUNTIMES[name].program for name in runtimes.candidates(image, container.runtime)]
        key = "image" if container.runtime == "auto" else "runtime"
        remedy = "install it, load its module (`modules` in the cluster file), set another `runtime`, or use `lock: auto`"
        yield Problem((*loc, key), f"this machine has no {' or '.join(programs)} in the PATH; {remedy}")


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


def _bundles(config: Config) -> Iterator[tuple[str, str, Path]]:
    for name in sorted({deployment.environment for deployment in config.deployments.values()}):
        environment = config.environments[name]
        if environment.lock and environment.wheels:
            yield name, environment.lock, environment.wheels.absolute()


def _bundle_fault(config: Config, asked: str, folder: Path) -> str | None:
    if not os.path.isdir(folder):
        return f"there is no folder {shortened(str(folder), 200)}; `servemark bundle` makes it on a machine with internet"
    lock = _known_lock(asked)
    cache = (config.cluster and config.cluster.cache) or config.cache
    if lock is None or (build.prefix_of(lock, cache) / build.MARKER).exists():
        return None
    return wheels.fault(lock, folder, None)


def _known_lock(asked: str) -> lockfiles.Lock | None:
    """Return the lock file of an environment; None for `auto`, which the probed hardware decides, and for a file that cannot be used."""
    if not own_lock.is_path(asked):
        return lockfiles.table(lockfiles.ENVS).get(asked)
    with contextlib.suppress(EnvironmentRefused):
        return lockfiles.own(asked, lockfiles.ENVS, sys.version_info[:2], platform.machine())
    return None


def _model_fault(folder: Path, *, dummy: bool) -> str | None:
    if not os.path.isdir(folder):
        return f"there is no folder {shortened(str(folder), 200)}"
    if (folder / "snapshots").is_dir() and folder.name.startswith(_CACHED):
        name = folder.name.removeprefix(_CACHED).replace("--", "/", 1)
        hub = f"hf:{name}" if hub_source.parse(f"hf:{name}") else "hf:ORG/NAME"
        return f"is a folder of a hub cache; write `{hub}`, and under `hub_cache` {shortened(str(folder.parent), 200)}"
    try:
        Architecture.from_config(manifest.examine(folder, dummy=dummy).config)
    except WeightsRefused as error:
        return " ".join(part for part in (error.what, error.look and f"Look at {error.look}.", error.do) if part)
    return None
