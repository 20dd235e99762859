"""The limits of a measurement's verdict, as the configuration has them under ``verdict``."""

from typing import Annotated

from pydantic import Field

from servemark.records import Strict

_Fraction = Annotated[float, Field(strict=True, ge=0, le=1)]
_NotNegative = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]


class Verdict(Strict):
    """When a measurement is SUSPECT (kept and marked) or INVALID (excluded from all results)."""

    max_failed_fraction: _Fraction = Field(default=0.0, description="failed requests / configured requests; above it: INVALID")
    min_duration_s: _NotNegative = Field(default=1.0, description="seconds; a shorter measurement is SUSPECT")
    min_requests_per_slot: _NotNegative = Field(
        default=3.0, description="requests / concurrency; below it: SUSPECT, because ramp-up and ramp-down distort the results"
    )
    output_tokens_tolerance: _Fraction = Field(default=0.0, description="fraction by which output tokens may differ; above it: INVALID")
    input_tokens_tolerance: _Fraction = Field(default=0.05, description="fraction by which input tokens may differ; above it: SUSPECT")
    max_burst_fraction: _Fraction = Field(
        default=0.2, description="fraction of tokens that may arrive at the same time as the previous one; above it: SUSPECT"
    )
    # 0.85: an arrival waits rho / (2 (1 - rho)) steps for a loop of equal steps (M/D/1), 2.8 at 0.85 and 9.5 at 0.95.
    # Measured: `client_cpu` and `client_cpu_saturated` in planning/advice.yaml.
    max_client_cpu: _Fraction = Field(
        default=0.85, description="fraction of a core that a client process may use; above it: SUSPECT, because it sends and reads late"
    )
    # 0.05: whatever the randomness of the arrivals, the last of n is due n / rate after the beginning (see measurement/clients.py).
    # Measured: `client_rate_lack` in planning/advice.yaml.
    max_rate_deviation: _Fraction = Field(
        default=0.05,
        description="fraction by which the rate sent may fall below `request_rate`; above it: SUSPECT. Also the limit of the mean wait "
        "in the client, as a fraction of the mean TTFT (vLLM 0.25 does not record this wait)",
    )
    # 0.1: above it, three repetitions of each of two deployments show no difference below a quarter (Welch's t with 4 degrees of
    # freedom: 2.78 x 0.1 x sqrt(2/3) = 0.23 of the logarithm).
    # Measured: `repetition_spread_gpu` and `repetition_spread_cpu` in planning/advice.yaml.
    max_repetition_spread: _NotNegative = Field(
        default=0.1,
        description="relative standard deviation of the repetitions of a load: of output tokens/s, or at a request rate of the mean "
        "end-to-end latency; above it, all of them are SUSPECT. Checked when all measurements are collected",
    )
    min_client_overlap: _Fraction = Field(
        default=0.9, description="fraction of the measurement during which all client processes must be active; below it: SUSPECT"
    )
