"""Descriptions of model classes, made once for an environment and copied to each server.

At its first start, a server of vLLM runs a child process that imports the model's class. It writes facts about the class (such as whether
it supports pipeline parallelism) to VLLM_CACHE_ROOT/modelinfos, next to a hash of the class's source file. A start that finds this file
with the right hash needs no child process (vllm/model_executor/models/registry.py, _LazyRegisteredModel, 0.32.0). check_environment has
vLLM make the file before any server starts:

    CACHE/model-classes-UID/ENVIRONMENT/ARCHITECTURE/modelinfos/*.json

No result depends on these files: a server without one makes it.
"""

import hashlib
import os
import shutil
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from servemark.environments import check
from servemark.environments.build import IN_MODEL_ENV
from servemark.errors import ServemarkError
from servemark.files.private import private
from servemark.processes.children import OwnerWatch, run_tool
from servemark.progress import Progress
from servemark.records import Environment, Hardware
from servemark.weights import hub_source, manifest, staging
from servemark.weights.builtin import CONFIGS
from servemark.weights.shape import BUILTIN

FOLDER = "model-classes"
MODELINFOS = "modelinfos"
"""vLLM's name of the folder below VLLM_CACHE_ROOT."""
TIMEOUT_S = 300


def architectures(sources: Iterable[str], cache: Path, hub: Path | None) -> set[str]:
    """Return the architectures of the models whose config.json is on this machine; nothing is requested from the hub.

    Args:
        sources: as ``models.NAME.source``.
        hub: a further cache of huggingface_hub.
    """
    named = [_config(source, cache, hub).get("architectures") for source in sources]
    # They become names of folders.
    return {name for names in named if isinstance(names, list) for name in names if isinstance(name, str) and name.isidentifier()}


def _config(source: str, cache: Path, hub: Path | None) -> dict[str, Any]:
    if source.startswith(BUILTIN):
        return CONFIGS.get(source.removeprefix(BUILTIN), {})
    of_hub = hub_source.parse(source)
    for folder in staging.places(of_hub, cache, hub) if of_hub else [Path(source).expanduser()]:
        with suppress(ServemarkError, OSError):
            return manifest.read_config(folder)
    return {}


def describe(
    environment: Environment,
    hardware: Hardware,
    wanted: Iterable[str],
    cache: Path,
    *,
    modules: Sequence[str] = (),
    log: Path,
    progress: Progress,
    watch: OwnerWatch,
) -> None:
    """Have vLLM describe the classes of these architectures, unless the cache has them. Report each one that cannot be described.

    Args:
        wanted: architectures.
        modules: environment modules to load first.
        log: of the environment's check. The output is added to it.
    """
    temporary = check.temporary_folder(log)
    for architecture in sorted(wanted):
        place = folder(cache, environment.digest) / architecture
        if _described(place):
            continue
        progress.say(f"describing the model class {architecture}")
        arguments = [IN_MODEL_ENV / "check_environment.py", "model_class", architecture]
        variables = {"VLLM_CACHE_ROOT": str(place)}
        try:
            private(place.parents[1])
            place.mkdir(parents=True, exist_ok=True)
            temporary.mkdir(parents=True, exist_ok=True)
            argv, env = check.command(
                environment, hardware, arguments, modules=modules, temporary=temporary, folders=[log.parent, place], variables=variables
            )
            before = log.stat().st_size
            result = run_tool(argv, log=log, env=env, timeout_s=TIMEOUT_S, watch=watch)
            output = log.read_bytes()[before:].decode(errors="replace").strip().splitlines()
            why = result.stopped or (output or [f"exit code {result.exit_code}"])[-1]
        except (OSError, ServemarkError) as error:
            why = str(error)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        if not _described(place):
            text = (
                f"vLLM did not describe the model class {architecture}: {why}. No action needed: each server does this at its first start."
            )
            progress.say(text)
            with log.open("a") as stream:
                stream.write(f"servemark: {text}\n")


def copies(cache: Path, digest: str, root: str) -> dict[str, str]:
    """Return the copies that a server needs, as ``DaemonRequest.copies``.

    Args:
        digest: the environment's.
        root: the server's VLLM_CACHE_ROOT.
    """
    return {str(Path(root, MODELINFOS, file.name)): str(file) for file in sorted(_described(folder(cache, digest) / "*"))}


def folder(cache: Path, digest: str) -> Path:
    """Return the folder of an environment's descriptions. Each user has one: servers use its files without checking who wrote them."""
    return (cache / f"{FOLDER}-{os.getuid()}" / hashlib.sha256(digest.encode()).hexdigest()[:16]).absolute()


def _described(place: Path) -> list[Path]:
    return list(place.parent.glob(f"{place.name}/{MODELINFOS}/*.json"))
