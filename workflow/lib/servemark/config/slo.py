"""Latency targets of the report (service level objectives). They decide no verdict and are not in the ledger key."""

import itertools
from typing import Annotated, Self

from pydantic import Field, model_validator

from servemark.config.field_types import refuse
from servemark.records import Strict

_Limit = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]


class Limits(Strict):
    """The most that the percentiles of one latency may be, in milliseconds."""

    p50: _Limit | None = Field(default=None, description="ms; at least half of the requests take no longer")
    p95: _Limit | None = Field(default=None, description="ms; at least 95 % of the requests take no longer")
    p99: _Limit | None = Field(default=None, description="ms; at least 99 % of the requests take no longer")

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        known = [(name, limit) for name, limit in self if limit is not None]
        if not known:
            raise refuse("must not be empty: give a limit for `p50`, `p95` or `p99`")
        for (name, limit), (above, larger) in itertools.pairwise(known):
            if limit > larger:
                raise refuse(f"is {limit:g} ms, more than the {larger:g} ms of `{above}`, so `{above}` alone would decide", at=(name,))
        return self


class Slo(Strict):
    """Limits of the latencies that the report compares a load with."""

    ttft_ms: Limits | None = Field(default=None, description="limits of the time to first token, by percentile")
    tpot_ms: Limits | None = Field(default=None, description="limits of the time per output token after the first, by percentile")
    e2el_ms: Limits | None = Field(default=None, description="limits of the time from the start of a request to its last token")

    @model_validator(mode="after")
    def _asks_something(self) -> Self:
        if all(limits is None for _, limits in self):
            raise refuse(f"must not be empty: give one of {', '.join(f'`{name}`' for name in type(self).model_fields)}")
        return self
