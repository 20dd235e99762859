"""The bits of a quantised checkpoint's weights, as its config.json states them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MXFP4_BITS = 4.25
"""4-bit values and one 8-bit scale for each block of 32 (OCP Microscaling Formats 1.0, section 5.2)."""

MODELOPT_BITS = {"FP8": 8.0, "NVFP4": 4.5}
"""NVFP4: 4-bit values and one 8-bit scale for each block of 16."""


@dataclass(frozen=True)
class Quantised:
    """The quantisation of a checkpoint: ``method`` is None without one; ``known`` is false if config.json does not state its bits."""

    method: str | None
    weight_bits: float
    expert_bits: float
    float8_arithmetic: bool = False
    known: bool = True
    float4_arithmetic: bool = False


def read(config: Mapping[str, Any], unquantised: float) -> Quantised:
    """Read ``quantization_config`` in the formats of GPTQ and AWQ (``bits``), compressed-tensors and ModelOpt (``quant_algo``).

    Args:
        unquantised: bits of an unquantised weight, also taken for an unknown method.
    """
    settings = config.get("quantization_config") or {}
    method = settings.get("quant_method")
    if not method:
        return Quantised(None, unquantised, unquantised)
    if method == "mxfp4":
        return Quantised(method, unquantised, MXFP4_BITS)
    if method == "fp8":
        return Quantised(method, 8.0, 8.0, float8_arithmetic=True)
    if method == "modelopt" and (found := MODELOPT_BITS.get(str(settings.get("quant_algo", "")).upper())):
        return Quantised(method, found, found, float8_arithmetic=found == 8.0, float4_arithmetic=found < 8.0)
    if method == "compressed-tensors" and (group := _only_group(settings)):
        weights, inputs = group.get("weights") or {}, group.get("input_activations") or {}
        if isinstance(weights.get("num_bits"), int):
            width = _with_scales(weights["num_bits"], weights.get("group_size"), zero_points=not weights.get("symmetric", True))
            bits = inputs.get("num_bits") if {inputs.get("type"), weights.get("type")} == {"float"} else None
            four = bits == weights["num_bits"] == 4
            return Quantised(method, width, width, float8_arithmetic=bits == 8, float4_arithmetic=four)
    if isinstance(settings.get("bits"), int):
        width = _with_scales(settings["bits"], settings.get("group_size") or 128, zero_points=True)
        return Quantised(method, width, width)
    return Quantised(method, unquantised, unquantised, known=False)


def _only_group(settings: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the one group of layers; None for several, because config.json does not state the share of each."""
    groups = settings.get("config_groups")
    found = list(groups.values()) if isinstance(groups, Mapping) else []
    return found[0] if len(found) == 1 and isinstance(found[0], Mapping) else None


def _with_scales(bits: int, group: object, *, zero_points: bool) -> float:
    """Return the bits of a weight, with its share of the 16-bit scale and the zero point of its group."""
    if not isinstance(group, int) or group <= 0:
        return float(bits)
    return bits + (16 + (bits if zero_points else 0)) / group
