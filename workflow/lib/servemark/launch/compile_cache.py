"""Where servers keep what they compile for a GPU, so that a later start finds it.

vLLM (torch.compile), Inductor, Triton, FlashInfer and TileLang name what they keep by a digest of all that it depends on, model,
options and their own version included, so deployments can share a folder. There is one for each environment, kind of node and
engine shape all the same: then it can be said what a start found, and what is of no more use can be deleted.

Several servers, on several nodes, may fill it at once. vLLM's compiled model (compilation/decorators.py,
save_aot_compiled_function), FlashInfer's tunings (model_executor/warmup/flashinfer_autotune_cache.py), Inductor's graphs
(torch/_inductor/codecache.py, write_atomic) and Triton's kernels (triton/runtime/cache.py, FileCacheManager.put) are written beside and
renamed; a compiled model that cannot be read is made again (_try_load_aot_compiled_fn). One file is written in place, vLLM's small
vllm_compile_cache.py (compilation/backends.py, save_to_file): a server that reads it in that very moment ends with a SyntaxError, as it
would in a shared home folder, and comes up at the next start. All as of vLLM 0.25.1 and 0.32.0.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from servemark.config.model import Config
from servemark.records import Hardware, Plan, utc_now, write_atomically
from servemark.records.deployment import CompileCache
from servemark.variables.table import COMPILE_CACHES

FOLDER = "compiled"
WHAT = "what.json"
STARTS = "starts"
# What of a plan, besides that which names the folder, decides what is compiled.
_OF_A_START = ("model", "options", "variables", "modules")


def place(config: Config, plan: Plan, hardware: Hardware) -> Path | None:
    """Return the folder that a deployment's servers share with later starts; None where ``compile_cache: none`` asks for first starts."""
    if config.deployments[plan.deployment].compile_cache == "none":
        return None
    return (config.cache / f"{FOLDER}-{os.getuid()}" / _digest(purpose(plan, hardware))).absolute()


def fresh(scratch: Path) -> Path:
    """Return the folder of a start that is to find nothing: below the attempt's own on each node, and gone with it."""
    return scratch / FOLDER


def purpose(plan: Plan, hardware: Hardware) -> dict[str, Any]:
    """Return what a folder is for. Each user has a folder, because compiled code runs as it is found: nobody runs another user's."""
    return {
        "environment": plan.environment_digest,
        "gpus": sorted({gpu.name for gpu in hardware.gpus}),
        "driver": hardware.driver,
        "architecture": hardware.architecture,
        "cpu_model": hardware.cpu_model if hardware.accelerator == "cpu" else None,
        "engine": {size: getattr(plan.topology, size) for size in ("tensor_parallel", "pipeline_parallel", "data_parallel")},
    }


def variables(folder: Path | str, given: Mapping[str, str]) -> dict[str, str]:
    """Return variables of a server that keeps what it compiles in ``folder``, without those that ``given`` already has."""
    return {name: str(Path(folder, below)) for name, (below, _) in COMPILE_CACHES.items() if not _said(name, given)}


def prepare(folder: Path, plan: Plan, hardware: Hardware) -> CompileCache | None:
    """Make the folder, and return what is in it; call it before a server begins.

    Returns:
        ``filled``: a deployment of the same model, options, variables and modules has come up with it; ``other``: only others have, or one
        is about to; ``empty``; None: the deployment's own variables name other places, of which nothing is known.

    Raises:
        OSError: it cannot be made or read.
    """
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    if not (folder / WHAT).exists():
        text = "What vLLM and its libraries compiled, for later starts. It can be deleted while no server runs."
        write_atomically(folder / WHAT, json.dumps({"what": text, "for": purpose(plan, hardware)}, indent=2) + "\n")
    if not is_ours(plan):
        return None
    if _mark(folder, plan)[0].exists():
        return "filled"
    used = (folder / STARTS, *(folder / below for below, _ in COMPILE_CACHES.values()))
    return "other" if any(path.is_dir() and any(path.iterdir()) for path in used) else "empty"


def is_ours(plan: Plan) -> bool:
    """Return whether all that the deployment compiles lies in our folder; its own variables may name other, unknown places."""
    return not any(_said(name, plan.variables) for name in COMPILE_CACHES)


def came_up(folder: Path, plan: Plan) -> None:
    """Note that a deployment's servers have come up with this folder; raise OSError if the note cannot be written."""
    mark, parts = _mark(folder, plan)
    if not mark.exists():
        write_atomically(mark, json.dumps({"first_ready_at": utc_now(), **parts}, indent=2) + "\n")


def _said(name: str, given: Mapping[str, str]) -> bool:
    return any(other in given for other in (name, *COMPILE_CACHES[name][1]))


def _mark(folder: Path, plan: Plan) -> tuple[Path, dict[str, Any]]:
    parts = {part: plan.key_parts.get(part) for part in _OF_A_START}
    return folder / STARTS / f"{_digest(parts)}.json", parts


def _digest(parts: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]
