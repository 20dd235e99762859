"""Link folders whose names contain special characters, because compilers do not quote them.

torch's Inductor, and ninja behind FlashInfer, join command lines without quoting: a space in the name of an environment or of a folder
for compiled code ends a server that compiles (torch 2.13, _inductor/cpp_builder.py). The name is a link in this user's private folder on
the node. It is the same at every start, because vLLM and Python find what they compiled by the names of its sources.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shlex
from pathlib import Path

from servemark.errors import ServemarkError
from servemark.files.private import private
from servemark.variables.table import COMPILE_CACHES

FOLDER = "names"


def is_plain(path: str | Path) -> bool:
    """Return whether a shell reads the path as it is."""
    return shlex.quote(str(path)) == str(path)


def plain(folder: Path, root: Path) -> Path:
    """Return ``folder``, or a link to it below the private folder ``root`` if its name has special characters.

    Raises:
        OSError: the link cannot be made, or other users can write to ``root``.
    """
    if is_plain(folder):
        return folder
    try:
        private(root)
    except ServemarkError as error:
        raise PermissionError(str(error)) from error
    link = root / FOLDER / hashlib.sha256(os.fsencode(folder)).hexdigest()[:12]
    if not (link.is_symlink() and os.readlink(link) == str(folder)):
        link.parent.mkdir(mode=0o700, exist_ok=True)
        # Several processes may do the same at once.
        new = link.with_name(f"{link.name}.{secrets.token_hex(4)}")
        new.symlink_to(folder)
        new.replace(link)
    return link


def interpreter(python: str, root: Path) -> str:
    """Return the interpreter's path, through a link if the path has special characters."""
    path = Path(python)
    return str(plain(path.parents[1], root) / path.relative_to(path.parents[1])) if len(path.parents) > 2 else python


def folders(env: dict[str, str], root: Path) -> dict[str, str]:
    """Return the variables among ``env`` that name folders for compiled code with special characters, with plain names."""
    found = {}
    for name in COMPILE_CACHES:
        if name in env and not is_plain(env[name]):
            folder = Path(env[name])
            # Programs cannot create a folder through a link that leads nowhere.
            linked = folder.parent if is_plain(folder.name) else folder
            linked.mkdir(parents=True, exist_ok=True)
            found[name] = str(plain(linked, root) / folder.relative_to(linked))
    return found
