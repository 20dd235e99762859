"""Variables of a server with random weights (``load_format: dummy``), whose loader is ``in_model_env/random_weights``."""

import os
from collections.abc import Mapping
from pathlib import Path

# A folder of vLLM's PYTHONPATH. Its entry points make it a plugin of vLLM.
FOLDER = Path(__file__).parents[1] / "in_model_env" / "random_weights"
LOAD_FORMAT = "servemark_random_2"
_PLUGINS = "VLLM_PLUGINS"


def environment(options: Mapping[str, object], variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for random weights; empty for a server with a checkpoint.

    Args:
        options: the plan's options.
        variables: the server's other variables. PYTHONPATH and a list of allowed plugins are extended.
    """
    if options.get("load-format") != LOAD_FORMAT:
        return {}
    path = os.pathsep.join(filter(None, (str(FOLDER), variables.get("PYTHONPATH"))))
    plugins = {_PLUGINS: f"{variables[_PLUGINS]},{LOAD_FORMAT}"} if _PLUGINS in variables else {}
    return {"PYTHONPATH": path} | plugins
