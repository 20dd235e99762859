"""The folder in which servers keep compiled code for later starts.

The libraries name compiled code by a digest of model, options and versions, so deployments can share a folder. Each environment, kind of
node and engine shape has its own, so that servemark can report its state before a start, and users can delete old ones.

Several servers may fill a folder at once: vLLM, Inductor, Triton, FlashInfer and Humming write a draft and rename it, with two exceptions:

* vLLM writes one small file in place (compilation/backends.py, save_to_file; 0.25.1, 0.32.0): a server that reads it meanwhile ends with a
  SyntaxError, and not again at its next start.
* Inductor's C++ compiler links its libraries in place, and Inductor takes any file that exists for complete (codecache.py, torch 2.13). If
  a start is killed while it links, every later start fails with "file too short". So incomplete libraries are removed before each start.
"""

import hashlib
import json
import os
import struct
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from servemark.config.model import Config
from servemark.config.restarts import deployment_of
from servemark.records import Hardware, Plan, utc_now, write_atomically
from servemark.records.deployment import CompileCache
from servemark.variables.table import COMPILE_CACHES

FOLDER = "compiled"
WHAT = "what.json"
STARTS = "starts"
LINKING_S = 10.0
"""Age in seconds above which an incomplete library counts as abandoned. Linking one of Inductor's takes less than a second."""
# Key parts that change the compiled code of a folder.
_OF_A_START = ("model", "options", "variables", "modules")


def place(config: Config, plan: Plan, hardware: Hardware) -> Path | None:
    """Return the folder that a deployment's servers share with later starts; None with ``compile_cache: none``.

    Each user has a folder, because servers run the code in it unchecked.
    """
    if deployment_of(config, plan.deployment).compile_cache == "none":
        return None
    return (config.cache / f"{FOLDER}-{os.getuid()}" / _digest(purpose(plan, hardware))).absolute()


def fresh(scratch: Path) -> Path:
    """Return an empty folder for one start, below the attempt's scratch folder on each node."""
    return scratch / FOLDER


def purpose(plan: Plan, hardware: Hardware) -> dict[str, Any]:
    """Return the properties that a folder's name is made from."""
    return {
        "environment": plan.environment_digest,
        "gpus": sorted({gpu.name for gpu in hardware.gpus}),
        "driver": hardware.driver,
        "architecture": hardware.architecture,
        "cpu_model": hardware.cpu_model if hardware.accelerator == "cpu" else None,
        "engine": {size: getattr(plan.topology, size) for size in ("tensor_parallel", "pipeline_parallel", "data_parallel")},
    }


def variables(folder: Path | str, given: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that make a server keep compiled code in ``folder``, except the variables in ``given``."""
    return {name: str(Path(folder, below)) for name, (below, _) in COMPILE_CACHES.items() if not _is_set(name, given)}


def prepare(folder: Path, plan: Plan, hardware: Hardware) -> CompileCache | None:
    """Make the folder, remove incomplete libraries, and return its state before a server starts.

    Returns:
        ``filled``: a deployment with the same model, options, variables and modules was ready with this folder; ``other``: it holds other
        compiled code; ``empty``; None: the deployment's own variables name other folders.

    Raises:
        OSError: the folder cannot be made or read.
    """
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    for library in list(incomplete(folder)):
        library.unlink(missing_ok=True)
    if not (folder / WHAT).exists():
        text = "Code that vLLM and its libraries compiled, for later starts. Delete it only while no server runs."
        write_atomically(folder / WHAT, json.dumps({"what": text, "for": purpose(plan, hardware)}, indent=2) + "\n")
    if not is_ours(plan):
        return None
    if _mark(folder, plan)[0].exists():
        return "filled"
    used = (folder / STARTS, *(folder / below for below, _ in COMPILE_CACHES.values()))
    return "other" if any(path.is_dir() and any(path.iterdir()) for path in used) else "empty"


def incomplete(folder: Path) -> Iterator[Path]:
    """Yield the shared libraries that a killed compiler left unfinished below ``folder``."""
    for library in folder.rglob("*.so"):
        try:
            old = time.time() - library.stat().st_mtime > LINKING_S
            if old and not _is_whole(library):
                yield library
        except FileNotFoundError:
            continue


def _is_whole(library: Path) -> bool:
    """Return whether a library is complete. Files of other kinds are, unless they are empty or begin with zeros.

    A linker writes the table of sections last. Its place, the size of an entry and their number are at fixed offsets (elf(5), 64 bits).
    """
    size = library.stat().st_size
    with library.open("rb") as stream:
        head = stream.read(64)
    if head.strip(b"\0") and not b"\x7fELF\x02".startswith(head[:5]):
        return True
    if len(head) < 64:
        return False
    (table,), (entry, entries) = struct.unpack_from("<Q", head, 40), struct.unpack_from("<HH", head, 58)
    return bool(table) and size >= table + entry * entries


def is_ours(plan: Plan) -> bool:
    """Return whether servemark chooses every folder of compiled code; the deployment's own variables may set others."""
    return not any(_is_set(name, plan.variables) for name in COMPILE_CACHES)


def came_up(folder: Path, plan: Plan) -> None:
    """Record that a deployment's servers were ready with this folder, or raise OSError."""
    mark, parts = _mark(folder, plan)
    if not mark.exists():
        write_atomically(mark, json.dumps({"first_ready_at": utc_now(), **parts}, indent=2) + "\n")


def _is_set(name: str, given: Mapping[str, str]) -> bool:
    return any(other in given for other in (name, *COMPILE_CACHES[name][1]))


def _mark(folder: Path, plan: Plan) -> tuple[Path, dict[str, Any]]:
    parts = {part: plan.key_parts.get(part) for part in _OF_A_START}
    return folder / STARTS / f"{_digest(parts)}.json", parts


def _digest(parts: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]
