"""Options and variables that let a server calculate in fewer bits than its model was made for: faster, and no longer the same answers.

Figures with and without them tell of different things, so each is said beside every figure it stands behind. That a checkpoint is
quantised says nothing here: its makers chose that.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

from servemark.planning.demand import Asked

AS_THE_MODEL = ("auto", "float16", "bfloat16", "float32")
"""Values of kv-cache-dtype that round nothing; the others have 8 bits or fewer (vllm/config/cache.py, CacheDType, 0.25.1 and 0.32.0)."""

INPUTS = "inputs of the quantised matrices"
ROUNDING: dict[str, Callable[[str], str]] = {
    "VLLM_HUMMING_INPUT_QUANT_CONFIG": lambda value: _humming(value, INPUTS),
    "VLLM_MARLIN_INPUT_DTYPE": lambda value: f"{INPUTS} in {value}",
    "VLLM_HUMMING_ONLINE_QUANT_CONFIG": lambda value: _humming(value, "weights"),
    "VLLM_HUMMING_USE_F16_ACCUM": lambda value: "sums in 16 bits" if value.lower() in ("1", "true") else "",
}
"""Variables of vLLM's kernels that round, and what of (vllm/envs.py, 0.25.1 and 0.32.0)."""


def fewer_bits(asked: Asked) -> Iterator[str]:
    """What is calculated in fewer bits than the checkpoint's, and that no figure here says what that does to the answers."""
    given = [*_options(asked), *_variables(asked)]
    if given:
        yield (
            f"{'; '.join(given)}: the server calculates in fewer bits than the model was made for. The figures tell of its speed; whether "
            "its answers are still good enough is yours to measure, with a benchmark of quality such as lm-eval. Compare with a deployment "
            "without it."
        )


def _options(asked: Asked) -> Iterator[str]:
    cache = str(asked.options.get("kv-cache-dtype", "auto"))
    if cache not in AS_THE_MODEL:
        yield f"options.kv-cache-dtype: {cache} (KV cache in {cache})"
    method = asked.options.get("quantization")
    if method is not None and _family(str(method)) != _family(asked.architecture.quantisation or ""):
        yield f"options.quantization: {method} (weights rounded when they are loaded)"


def _variables(asked: Asked) -> Iterator[str]:
    for name, rounded in ROUNDING.items():
        if (value := asked.variables.get(name)) and (what := rounded(value)):
            yield f"variables.{name} ({what})"


def _family(method: str) -> str:
    """A checkpoint's method under all names of vLLM's for it: gpt_oss_mxfp4, awq_marlin (model_executor/layers/quantization)."""
    return method.removeprefix("gpt_oss_").removesuffix("_marlin")


def _humming(value: str, what: str) -> str:
    """What is rounded by a configuration of Humming; empty for 16 bits."""
    dtype = _dtype(value)
    return "" if dtype in AS_THE_MODEL else f"{what} in {dtype}"


def _dtype(value: str) -> str:
    """The number format that a configuration of Humming names, under any of the names that it takes for it."""
    try:
        settings = json.loads(value)
    except ValueError:
        return "what that file says"
    names = ("a_dtype", "b_dtype", "input_dtype", "weight_dtype", "dtype")
    found = [settings[name] for name in names if name in settings] if isinstance(settings, dict) else []
    return str(found[0]) if found else "fewer bits"


RULES: tuple[Callable[[Asked], Iterator[str]], ...] = (fewer_bits,)
