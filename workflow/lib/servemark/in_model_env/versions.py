"""Print the installed versions of vLLM and Ray in the model environment as JSON, without importing them.

usage: python versions.py
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
