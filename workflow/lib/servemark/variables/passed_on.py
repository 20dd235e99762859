"""Which environment variables another interpreter gets from this process."""

from __future__ import annotations

import os
from collections.abc import Mapping

from servemark.variables import table


def clean_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return our environment without variables that mislead another interpreter or hold credentials (``table.TABLE``), plus ``extra``."""
    return {**handed_on(os.environ), **(extra or {})}


def with_tools_of(program: str, env: Mapping[str, str]) -> dict[str, str]:
    """Return ``env`` with the folder of ``program`` first in PATH, as an activated environment has it; unchanged for a bare name."""
    folder = os.path.dirname(program)
    return {**env, "PATH": f"{folder}:{env.get('PATH', os.defpath)}"} if os.path.isabs(program) else dict(env)


def handed_on(env: Mapping[str, str]) -> dict[str, str]:
    """Return the part of an environment that :func:`clean_environment` passes on."""
    return {name: value for name, value in env.items() if table.row(name).server}
