"""The random weights of models with ``load_format: dummy`` (``in_model_env/random_weights``), and how a server comes to them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

# What vLLM may import of ours: nothing else lies there. Its entry points make it a plugin of vLLM.
FOLDER = Path(__file__).parents[1] / "in_model_env" / "random_weights"
LOAD_FORMAT = "servemark_random_2"
_PLUGINS = "VLLM_PLUGINS"


def environment(options: Mapping[str, object], variables: Mapping[str, str]) -> dict[str, str]:
    """Return variables of a server whose weights are random; none for any other.

    Args:
        options: the plan's.
        variables: the server's so far. What its PYTHONPATH has stays, and a list of plugins that are allowed gets this one.
    """
    if options.get("load-format") != LOAD_FORMAT:
        return {}
    path = os.pathsep.join([str(FOLDER), *([variables["PYTHONPATH"]] if variables.get("PYTHONPATH") else [])])
    plugins = {_PLUGINS: f"{variables[_PLUGINS]},{LOAD_FORMAT}"} if _PLUGINS in variables else {}
    return {"PYTHONPATH": path} | plugins
