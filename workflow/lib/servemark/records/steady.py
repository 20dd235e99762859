"""Results of the steady state of a load point, without its start and its end."""

from pydantic import Field

from servemark.records.base import Strict


class SteadyLatency(Strict):
    """Distribution of one latency in the steady state, milliseconds. A percentile is null if too few values are left for it."""

    count: int
    mean: float
    std: float
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None
    max: float
    p95_range: tuple[float, float] | None = Field(
        default=None,
        description="95 % confidence interval of p95; null for itl, for too few requests, and for requests that start in waves",
    )


class Steady(Strict):
    """Results of the steady state. ``measurement/steady.py`` defines it."""

    begin_s: float = Field(description="begin of the steady state, seconds after the first request's start")
    end_s: float = Field(description="end of the steady state, seconds after the first request's start")
    requests: int = Field(description="completed requests that start in the steady state; the latencies rest on them")
    cycles: int | None = Field(default=None, description="requests of each slot in one window of the throughput; null: request rate")
    request_throughput: float = Field(description="requests/s")
    output_throughput: float = Field(description="output tokens/s")
    total_throughput: float = Field(description="input + output tokens/s")
    in_flight: float = Field(description="mean number of requests in flight")
    waves: float | None = Field(
        default=None, description="0 to 1: how much the requests of all slots start at the same time; null: request rate"
    )
    ttft_ms: SteadyLatency | None = None
    tpot_ms: SteadyLatency | None = None
    itl_ms: SteadyLatency | None = None
    e2el_ms: SteadyLatency | None = None
    too_few: str | None = Field(default=None, description="which percentiles are null, and why")
