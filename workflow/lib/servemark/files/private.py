"""A private folder of this user for short-lived files on this machine."""

import contextlib
import os
import socket
from pathlib import Path

from servemark.errors import ServemarkError

RUNTIME_VARIABLE = "SERVEMARK_RUNTIME_DIR"


def runtime_root() -> Path:
    """Return this user's private folder for short-lived files on this machine, or raise ServemarkError.

    Its name is short, because Ray makes socket names of at most 107 bytes below it. ``SERVEMARK_RUNTIME_DIR`` sets another folder. All
    runs on the machine need the same one, because it contains the machine's lock file.
    """
    return private(runtime_folder())


def runtime_folder() -> Path:
    """Return the path of :func:`runtime_root` without making the folder."""
    return Path(os.environ.get(RUNTIME_VARIABLE) or f"/tmp/servemark-{os.getuid()}")


def private(root: Path) -> Path:
    """Make this folder if it is missing and return it; raise ServemarkError if other users can write there."""
    with contextlib.suppress(FileExistsError):
        root.mkdir(mode=0o700, parents=True)
    status = root.lstat()
    if status.st_uid != os.getuid() or status.st_mode & 0o077 or not root.is_dir() or root.is_symlink():
        raise ServemarkError(
            f"{root} exists on {socket.gethostname()} and is not a private folder of yours.",
            do="Remove it or have its owner remove it, or set another folder: `scratch` or `local_models` in the cluster file, or export "
            "SERVEMARK_RUNTIME_DIR for a run on one machine.",
            reason="runtime_folder_refused",
        )
    return root
