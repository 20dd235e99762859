"""Redirect cache folders if the home folder is read-only, full, of another user, or missing.

Snakemake makes its source cache below ``XDG_CACHE_HOME`` (``~/.cache``) before it reads the workflow, and no option prevents that. So the
Slurm executor calls :func:`replace` (entry point in ``servemark-1.dist-info``) when Snakemake imports its plugins, in jobs too. Only two
variables change: pip, Hugging Face, vLLM, torch and matplotlib read both. git, ssh and environment modules use ``HOME``.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from servemark.errors import ServemarkError
from servemark.files import storage
from servemark.files.private import runtime_root

# Default folders below the home folder.
FOLDERS = {"XDG_CACHE_HOME": ".cache", "XDG_CONFIG_HOME": ".config"}
# The chosen folder. Another node does not have it and chooses its own.
VARIABLE = "SERVEMARK_HOME"
NAME = "home"
_PROBE_BYTES = 2**16


def replaced(env: Mapping[str, str], private: Callable[[], Path]) -> dict[str, str]:
    """Return ``env`` with other cache folders if the home folder takes no files. ``private`` makes their parent if needed."""
    chosen = env.get(VARIABLE)
    kept = {
        name: value for name, value in env.items() if name != VARIABLE and not (chosen and name in FOLDERS and value.startswith(chosen))
    }
    refusing = [name for name, below in FOLDERS.items() if _refuses(kept, name, below)]
    if not refusing:
        return kept
    root = private() / NAME
    for name in refusing:
        (root / FOLDERS[name]).mkdir(mode=0o700, parents=True, exist_ok=True)
    return kept | {VARIABLE: str(root)} | {name: str(root / FOLDERS[name]) for name in refusing}


def replace() -> None:
    """Apply :func:`replaced` to this process, unless no folder can be made."""
    try:
        env = replaced(os.environ, runtime_root)
    except (OSError, ServemarkError):
        return
    for name in (VARIABLE, *FOLDERS):
        if name in env:
            os.environ[name] = env[name]
        else:
            os.environ.pop(name, None)


def _refuses(env: Mapping[str, str], name: str, below: str) -> bool:
    place = os.path.expanduser(env.get(name, "").strip() or os.path.join(env.get("HOME") or "~", below))
    # expanduser() keeps the ``~`` of a user without a home folder.
    return place.startswith("~") or bool(storage.probe([Path(place)], _PROBE_BYTES))
