"""What closes every route of a server to those without the key (``in_model_env/doors/servemark_require_key.py``)."""

from __future__ import annotations

import os
from collections.abc import Mapping

from servemark.environments.build import IN_MODEL_ENV

# What vLLM may import of ours: a folder with nothing else in it, so that no module of the model environment is hidden.
DOORS = IN_MODEL_ENV / "doors"
MIDDLEWARE = "servemark_require_key.RequireKey"
# The variable that brings the key to the server. Not vLLM's own (VLLM_API_KEY): up to 0.25.1 at least it counts among what a compiled
# model depends on (vllm/envs.py, compile_factors), so that no start with a new key would find what an earlier one compiled, and it is
# written in clear text beside it (cache_key_factors.json).
KEY = "SERVEMARK_API_KEY"


def arguments() -> list[str]:
    """Return arguments of ``vllm serve`` that close all its routes. They come last: what is added last is asked first."""
    return ["--middleware", MIDDLEWARE]


def environment(variables: Mapping[str, str], *, behind_router: bool = False) -> dict[str, str]:
    """Return variables of a server with :func:`arguments`; the key itself comes as :data:`KEY` from its 0600 file.

    Args:
        variables: the deployment's own; a PYTHONPATH among them is kept behind ours.
        behind_router: whether the server is a replica. vllm-router looks for ``GET /health`` without a key, so this one
            route of a replica answers to anybody, with 200 or 503 and no body.
    """
    path = os.pathsep.join([str(DOORS), *([variables["PYTHONPATH"]] if variables.get("PYTHONPATH") else [])])
    return {"PYTHONPATH": path} | ({"SERVEMARK_HEALTH_WITHOUT_KEY": "1"} if behind_router else {})
