"""The keys of a search for the highest load that meets the latency targets: `{search: {from: 1, to: 512}}` in place of a load."""

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, WithJsonSchema, model_validator

from servemark.config.field_types import Concurrency, Rate, Rates, refuse
from servemark.records import Strict
from servemark.records.base import MOST, Count

TRIALS = 12
LEAST_TRIALS, MOST_TRIALS = 3, 100
REQUESTS_PER_SLOT = 5
"""Requests of each slot of a searched concurrency, if `requests` is less: two more than a VALID measurement needs by default."""
FORMS = ("<loads>", "<search>")
"""pydantic inserts one of them into the place of a fault; no key has such a name."""

_Trials = Annotated[int, Field(strict=True, ge=LEAST_TRIALS, le=MOST_TRIALS)]


class Range(Strict):
    """The loads between which servemark searches, and the most measurements."""

    model_config = ConfigDict(serialize_by_alias=True)

    low: float = Field(alias="from", description="the lowest load, which is measured first")
    high: float = Field(alias="to", description="the highest load")
    trials: _Trials = Field(default=TRIALS, description="the most measurements")

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if not self.low < self.high:
            raise refuse(f"is {self.low:g} and must be less than `to`, which is {self.high:g}", at=("from",))
        return self


class CountRange(Range):
    """A range of concurrencies."""

    low: Count = Field(alias="from", description="the lowest concurrency, which is measured first")
    high: Count = Field(alias="to", description="the highest concurrency")


class RateRange(Range):
    """A range of request rates, requests/s."""

    low: Rate = Field(alias="from", description="the lowest rate, which is measured first")
    high: Rate = Field(alias="to", description="the highest rate")


class CountSearch(Strict):
    """A concurrency that servemark searches."""

    search: CountRange = Field(description="range and number of trials")


class RateSearch(Strict):
    """A request rate that servemark searches."""

    search: RateRange = Field(description="range and number of trials")


def _form(value: Any) -> str:
    return FORMS[isinstance(value, Mapping | BaseModel)]


def _schema(kind: str, least: float, most: float) -> WithJsonSchema:
    item = {"type": kind, "minimum": least, "maximum": most}
    trials = {"type": "integer", "minimum": LEAST_TRIALS, "maximum": MOST_TRIALS, "default": TRIALS}
    keys = {"type": "object", "properties": {"from": item, "to": item, "trials": trials}, "required": ["from", "to"]}
    search = {"type": "object", "properties": {"search": keys | {"additionalProperties": False}}, "required": ["search"]}
    loads = {"type": "array", "items": item, "minItems": 1}
    return WithJsonSchema({"anyOf": [item, loads, search | {"additionalProperties": False}, {"type": "null"}]})


SearchableConcurrency = Annotated[
    Annotated[Concurrency, Tag(FORMS[0])] | Annotated[CountSearch, Tag(FORMS[1])], Discriminator(_form), _schema("integer", 1, MOST)
]
SearchableRates = Annotated[
    Annotated[Rates, Tag(FORMS[0])] | Annotated[RateSearch, Tag(FORMS[1])], Discriminator(_form), _schema("number", 0.001, 100_000)
]
