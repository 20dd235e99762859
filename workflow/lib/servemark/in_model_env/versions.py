"""Run by the model environment's interpreter: which versions are installed there, without importing any of them.

usage: python versions.py   (JSON on standard output)
"""

from __future__ import annotations

import importlib.metadata
import json
import platform


def version(name: str) -> str | None:
    """Return the installed version, or None."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


if __name__ == "__main__":
    print(json.dumps({"python": platform.python_version(), "vllm": version("vllm"), "ray": version("ray")}))
