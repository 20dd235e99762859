"""This user's private folder for short-lived files on this machine."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path

from servemark.errors import ServemarkError

RUNTIME_VARIABLE = "SERVEMARK_RUNTIME_DIR"


def runtime_root() -> Path:
    """Return this user's folder for short-lived things on this machine; private, refused when it is not.

    Short, because Ray makes socket names below it and these may have 107 bytes in all. ``SERVEMARK_RUNTIME_DIR`` gives another
    one, for a machine whose /tmp cannot be used; all runs that share the machine must be given the same, since its lock is there.

    Raises:
        ServemarkError: somebody else can write there.
    """
    return private(runtime_folder())


def runtime_folder() -> Path:
    """Return where :func:`runtime_root` is, or is made."""
    return Path(os.environ.get(RUNTIME_VARIABLE) or f"/tmp/servemark-{os.getuid()}")


def private(root: Path) -> Path:
    """Return this user's folder for short-lived things on this machine, made where it lacks.

    Raises:
        ServemarkError: somebody else can write there.
    """
    with contextlib.suppress(FileExistsError):
        root.mkdir(mode=0o700, parents=True)
    status = root.lstat()
    if status.st_uid != os.getuid() or status.st_mode & 0o077 or not root.is_dir() or root.is_symlink():
        raise ServemarkError(
            f"{root} exists on {socket.gethostname()} and is not a private folder of yours.",
            do="Remove it or have its owner remove it, or name another place: `scratch` or `local_models` in the cluster file, or export "
            "SERVEMARK_RUNTIME_DIR for a run on one machine.",
            reason="runtime_folder_refused",
        )
    return root
