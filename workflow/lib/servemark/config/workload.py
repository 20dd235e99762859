"""Workloads of the configuration: a union by ``dataset`` of what is sent (``records/workload.py``) and how much of it at once."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, ValidationInfo, field_validator

from servemark.config.field_types import (
    Amount,
    ClientOptions,
    Clients,
    Counts,
    Rates,
    RequestCounts,
    Warmups,
    one_or_more,
    refuse,
)
from servemark.config.reserved import WHOLE_LOAD_OPTIONS
from servemark.records import AnyPrompts, RandomPrompts, Strict
from servemark.records.base import MOST, Count

_PROMPTS: TypeAdapter[AnyPrompts] = TypeAdapter(AnyPrompts)


class Load(Strict):
    """How much is sent at once, and how often. Every concurrency or rate, times the repetitions, is one load point."""

    request_rate: Annotated[Rates | None, *one_or_more({"type": "number", "minimum": 0.001, "maximum": 100_000})] = Field(
        default=None, description="requests/s sent (Poisson arrivals), or a list, one load point each"
    )
    # After request_rate, because the check looks at it, and required unless a rate is given.
    concurrency: Annotated[Counts | None, *one_or_more({"type": "integer", "minimum": 1, "maximum": MOST})] = Field(
        default=None,
        validate_default=True,
        description="requests in flight, or a list, one load point each. Required unless `request_rate` is given; with it, the upper limit",
    )
    # After the two that say how many load points there are.
    requests: RequestCounts = Field(description="prompts of one load point, or a list with one for each `concurrency` or `request_rate`")
    repetitions: Count = Field(default=1, description="how often each load is measured; each sends other prompts")
    seed: Amount = Field(default=1, description="where the prompts' seeds derive from")
    warmups: Warmups = Field(
        default="auto",
        description="requests before the measured ones, with other prompts and outputs of 32 tokens at most; `auto`: two for each slot (32 "
        "with a request rate alone), at most `requests`",
    )
    client_options: ClientOptions = Field(default={}, description="further options of `vllm bench serve` under their own names")
    ask: Literal["endpoint", "replica"] = Field(
        default="endpoint",
        description="`endpoint`: requests go to the deployment's one address; `replica`: to the first replica past the router, which needs "
        "`topology.replicas` above 1 or `topology.balancing: router`",
    )
    # After the fields that its check looks at.
    clients: Clients = Field(
        default=1,
        description="processes that share the load of each point; `auto`: one for every 128 of its concurrency, at most half of the "
        "cluster file's cpus_per_node; one with a request rate alone",
    )

    @field_validator("concurrency")
    @classmethod
    def _load(cls, concurrency: tuple[int, ...] | None, info: ValidationInfo) -> tuple[int, ...] | None:
        # Absent from the data when it did not validate: then its own message is enough.
        rates = info.data.get("request_rate", ())
        if rates is None and concurrency is None:
            raise refuse("is missing: give `concurrency` or `request_rate`")
        if rates and concurrency and len(concurrency) > 1:
            raise refuse("takes one number beside `request_rate`; sweep either of them, not both")
        return concurrency

    @field_validator("requests")
    @classmethod
    def _one_for_each_load(cls, requests: tuple[int, ...], info: ValidationInfo) -> tuple[int, ...]:
        # As above: of a load that did not validate there is a message already.
        if not {"request_rate", "concurrency"} <= info.data.keys():
            return requests
        swept = "request_rate" if info.data["request_rate"] else "concurrency"
        loads = info.data[swept]
        if len(requests) > 1 and loads and len(requests) != len(loads):
            raise refuse(f"has {len(requests)} values and `{swept}` has {len(loads)}; give one for each, or one number for all")
        return requests

    @field_validator("clients")
    @classmethod
    def _can_be_shared(cls, clients: int | str, info: ValidationInfo) -> int | str:
        """Check that each process has a request and a place in flight. Each would send a rate of the client's own options."""
        if clients == 1:
            return clients
        whole = [name for name in info.data.get("client_options", {}) if name in WHOLE_LOAD_OPTIONS]
        if whole:
            raise refuse(f"`client_options.{whole[0]}` speaks of the whole load, which cannot be shared; write 1")
        for key, text in (("concurrency", "of `concurrency`"), ("requests", "`requests`")):
            given = info.data.get(key) or ()
            least = min(given if isinstance(given, tuple) else (given,), default=None)
            if clients != "auto" and least is not None and int(clients) > least:
                raise refuse(f"is more than the {least} {text} that they would share; each needs at least one")
        return clients

    @property
    def prompts(self) -> AnyPrompts:
        """Return what the requests hold, as plan and measurement record it."""
        return _PROMPTS.validate_python(self.model_dump(exclude=set(Load.model_fields)))


class RandomWorkload(Load, RandomPrompts):
    """Random tokens of fixed length."""


Workload = Annotated[RandomWorkload, Field(discriminator="dataset")]
KINDS: dict[str, type[Load]] = {"random": RandomWorkload}
"""Kind by ``dataset``."""
