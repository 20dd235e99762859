"""Paths in the stand-ins' environments."""

from __future__ import annotations

import sys
from pathlib import Path

from servemark.environments import build
from servemark.progress import Progress
from servemark.records import Environment


def site_packages(of: Environment) -> Path:
    """Return the folder of an environment's packages."""
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    return Path(of.prefix) / "lib" / version / "site-packages"


def described(changed: Environment) -> Environment:
    """Return the record of an environment whose installed files a test has changed."""
    found = build.use_prefix(changed.name, Path(changed.prefix), None, Progress(None, "test"))
    return changed.model_copy(update={"digest": found.digest})
