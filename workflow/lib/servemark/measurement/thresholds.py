"""The limits of a measurement's verdict, as the configuration has them under ``verdict``.

Each limit has an allowed range, so that no value makes every result VALID:

* at most half of requests, tokens, rate or concurrency may be missing
* each slot serves one request or more
* at most nine tenths of the tokens may arrive in bursts
* at most nine tenths of the chunks may be missing
* a client may use at most nine tenths of its core

Only the duration and the load of other processes may be left unchecked.
"""

import math
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from servemark.records import Strict

_Half = Annotated[float, Field(strict=True, ge=0, le=0.5)]
_Most = Annotated[float, Field(strict=True, ge=0, le=0.9)]
_Share = Annotated[float, Field(strict=True, ge=0, le=1)]
_AtLeastHalf = Annotated[float, Field(strict=True, ge=0.5, le=1)]
_AtLeastOne = Annotated[float, Field(strict=True, ge=1, allow_inf_nan=False)]
_NotNegative = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]


class Verdict(Strict):
    """When a measurement is SUSPECT (kept and marked) or INVALID (excluded from all results)."""

    max_failed_fraction: _Half = Field(default=0.0, description="failed requests / configured requests; above it: INVALID")
    min_duration_s: _NotNegative = Field(default=1.0, description="seconds; a shorter measurement is SUSPECT")
    min_requests_per_slot: _AtLeastOne = Field(
        default=3.0,
        description="requests / concurrency for outputs of one length, more for others; below it: SUSPECT, because start and end of "
        "the load distort the results",
    )
    output_tokens_tolerance: _Half = Field(default=0.0, description="fraction by which output tokens may differ; above it: INVALID")
    input_tokens_tolerance: _Half = Field(default=0.05, description="fraction by which input tokens may differ; above it: SUSPECT")
    max_burst_fraction: _Most = Field(
        default=0.2,
        description="fraction of tokens that may arrive at the same time as the previous one, and of chunks that may be missing; above it: "
        "SUSPECT",
    )
    # 0.85: an arrival waits rho / (2 (1 - rho)) steps for a loop of equal steps (M/D/1), 2.8 at 0.85 and 9.5 at 0.95.
    # Measured: `client_cpu` and `client_cpu_saturated` in planning/advice.yaml.
    max_client_cpu: _Most = Field(
        default=0.85, description="fraction of a core that a client process may use; above it: SUSPECT, because it sends and reads late"
    )
    # 0.05: whatever the randomness of the arrivals, the last of n is due n / rate after the beginning (see measurement/clients.py).
    # Measured: `client_rate_lack` in planning/advice.yaml.
    max_rate_deviation: _Half = Field(
        default=0.05,
        description="fraction by which the client's rate may fall below `request_rate`; above it: SUSPECT. The mean wait of a request in "
        "the client has the same limit, as a fraction of the mean TTFT (vLLM 0.25 does not record this wait)",
    )
    # 0.1: a server whose threads keep all cores busy loses about this share of its throughput to other processes that use it.
    max_foreign_cpu: _Share = Field(
        default=0.1, description="fraction of a CPU deployment's cores that other processes may use; above it: SUSPECT"
    )
    # 0.1: above it, three repetitions of each of two deployments show no difference below a quarter (Welch's t with 4 degrees of
    # freedom: 2.78 x 0.1 x sqrt(2/3) = 0.23 of the logarithm).
    # Measured: `repetition_spread_gpu` and `repetition_spread_cpu` in planning/advice.yaml.
    # At most 0.5: two repetitions whose ratio is above exp(0.5 sqrt(2)) = 2.03 are always SUSPECT.
    max_repetition_spread: _Half = Field(
        default=0.1,
        description="relative standard deviation of the VALID repetitions of a load; above it, all of these are SUSPECT. A SUSPECT "
        "repetition does not change the VALID ones (docs/explanation/comparisons.md). servemark compares the output tokens/s or, at a "
        "request rate, the mean end-to-end latency. Both are of the whole run. servemark checks it when it has collected all measurements",
    )
    min_client_overlap: _AtLeastHalf = Field(
        default=0.9, description="fraction of the measurement during which all client processes must be active; below it: SUSPECT"
    )
    # 0.9: seen are 0.954 to 1.000 until the last start, and 0.94 to 1.00 of what the lengths allow afterwards (measurement/laws.py).
    min_in_flight: _AtLeastHalf = Field(
        default=0.9,
        description="fraction of the concurrency that a closed loop must keep in flight on average; below it: SUSPECT, below half: INVALID",
    )


def stored(values: Mapping[str, Any]) -> Verdict:
    """Return thresholds that a run of any version used; their ranges may be wider than those of today.

    Raises:
        ValueError: an unknown name, or a value that is not a number of 0 or more.
    """
    wrong = [
        name
        for name, value in values.items()
        if name not in Verdict.model_fields or isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf
    ]
    if wrong:
        raise ValueError(f"no threshold, or no number of 0 or more: {', '.join(wrong)}")
    return Verdict.model_construct(**values)


def changed(values: Mapping[str, float]) -> str:
    """Return the thresholds that differ from the defaults as text, such as ``min_requests_per_slot=2``; empty without one."""
    defaults = Verdict().model_dump()
    return " ".join(f"{name}={value:g}" for name, value in values.items() if value != defaults.get(name))


def parsed(text: str) -> dict[str, float]:
    """Return thresholds from the text of ``changed``; it must be such a text."""
    return {name: float(value) for name, _, value in (part.partition("=") for part in text.split())}


def looser(values: Mapping[str, float]) -> str:
    """Return the thresholds that pass more than the defaults, as ``changed``."""
    defaults = Verdict().model_dump()

    def passes_more(name: str, value: float) -> bool:
        usual: float = defaults.get(name, value)
        return value < usual if name.startswith("min_") else value > usual

    return changed({name: value for name, value in values.items() if passes_more(name, value)})
