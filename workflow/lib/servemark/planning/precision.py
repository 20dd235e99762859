"""The arithmetic of a server: what it rounds more than the checkpoint does, and what two servers must share to be compared."""

from collections.abc import Mapping
from typing import Any

UNROUNDED = ("float16", "bfloat16", "float32")
ROUNDING = (
    "VLLM_HUMMING_INPUT_QUANT_CONFIG",
    "VLLM_HUMMING_ONLINE_QUANT_CONFIG",
    "VLLM_HUMMING_USE_F16_ACCUM",
    "VLLM_MARLIN_INPUT_DTYPE",
    "VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8",
    "VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8_CUTLASS",
)
"""Variables that make vLLM's kernels calculate in fewer bits (vllm/envs.py, 0.19.1, 0.25.1 and 0.32.0)."""

_ROUNDING_OPTIONS = ("kv-cache-dtype", "quantization", "quantization-config")
_OTHER_OPTIONS = ("dtype", "kv-cache-dtype-skip-layers", "mamba-cache-dtype", "mamba-ssm-cache-dtype", "hf-overrides", "load-format")
_SAME_TENSORS = (
    *("auto", "safetensors", "pt", "npcache", "instanttensor", "fastsafetensors", "tensorizer"),
    *("sharded_state", "runai_streamer", "runai_streamer_sharded"),
)
"""Load formats that read the checkpoint's own tensors (vllm/config/load.py, 0.32.0). Others make or round weights."""
_DTYPES = {"half": "float16", "float": "float32"}


def fewer_bits(options: Mapping[str, Any], variables: Mapping[str, str], quantisation: str | None) -> dict[str, str]:
    """Return the options and variables that round more than the checkpoint does, by their place in the configuration.

    Args:
        options: of `vllm serve`, in kebab case.
        quantisation: the method in the checkpoint's config.json.
    """
    given = {f"options.{name}": value for name in _ROUNDING_OPTIONS if (value := _option(options, name, quantisation))}
    given |= {f"variables.{name}": value for name in ROUNDING if _is_set(value := str(variables.get(name, "")))}
    return {place: value for place, value in given.items() if not any(dtype in value for dtype in UNROUNDED)}


def arithmetic(options: Mapping[str, Any], variables: Mapping[str, str], config: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings with which a server calculates otherwise than the checkpoint states.

    Two deployments of a model with equal settings calculate the same, up to the order of additions.

    Args:
        config: the model's config.json.
    """
    text = {**config, **config["text_config"]} if isinstance(config.get("text_config"), Mapping) else config
    settings = text.get("quantization_config")
    method = str(settings.get("quant_method") or "") if isinstance(settings, Mapping) else ""
    own = str(text.get("dtype") or text.get("torch_dtype") or "").removeprefix("torch.")
    found = {name: _option(options, name, method) for name in (*_ROUNDING_OPTIONS, *_OTHER_OPTIONS)}
    found["dtype"] = _DTYPES.get(found["dtype"], found["dtype"])
    # vLLM's `auto` is the checkpoint's dtype for 16 bits, and the platform's for 32 (vllm/config/model.py, _resolve_auto_dtype).
    found |= {name: "" for name in ("dtype", "kv-cache-dtype") if found[name] == own and own in UNROUNDED[:2]}
    if found["load-format"] in _SAME_TENSORS:
        found["load-format"] = ""
    found |= {name: value for name in ROUNDING if _is_set(value := str(variables.get(name, "")))}
    return {name: value for name, value in found.items() if value}


def _option(options: Mapping[str, Any], name: str, quantisation: str | None) -> str:
    """Return an option as text; empty if it is not set, leaves the choice to vLLM, or names the checkpoint's own quantisation."""
    value = options.get(name)
    text = "" if value is None else str(value)
    if not _is_set(text) or (name == "quantization" and _family(text) == _family(quantisation or "")):
        return ""
    return text


def _is_set(value: str) -> bool:
    return value.lower() not in ("", "0", "false", "auto")


def _family(method: str) -> str:
    """Return a quantisation method without vLLM's additions to its name, as in gpt_oss_mxfp4 and awq_marlin."""
    return method.removeprefix("gpt_oss_").removesuffix("_marlin")
