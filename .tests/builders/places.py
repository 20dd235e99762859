"""Paths in the stand-ins' environments."""

from __future__ import annotations

import sys
from pathlib import Path

from servemark.records import Environment


def site_packages(of: Environment) -> Path:
    """Return the folder of an environment's packages."""
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    return Path(of.prefix) / "lib" / version / "site-packages"
