"""Workloads of the configuration, a union by ``dataset``: the prompts (``records/load_point.py``) and the load."""

import math
from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, Tag, TypeAdapter, WithJsonSchema, field_validator, model_validator

from servemark.config.field_types import Amount, ClientOptions, Clients, Counts, Flag, TimeSpan, Warmups, refuse
from servemark.config.reserved import WHOLE_LOAD_OPTIONS
from servemark.config.search import REQUESTS_PER_SLOT, CountSearch, Range, RateSearch, SearchableConcurrency, SearchableRates
from servemark.config.slo import Slo
from servemark.datasets import hub
from servemark.records import AnyPrompts, DatasetSource, PrefixPrompts, RandomPrompts, StagedPrompts, Strict
from servemark.records.base import MOST, Count
from servemark.records.dataset import SOURCES
from servemark.records.load_point import Api

_PROMPTS: TypeAdapter[AnyPrompts] = TypeAdapter(AnyPrompts)

LENGTH_FORMS = ("<tokens>", "<recorded>")
"""pydantic inserts one of them into the place of a fault of ``output_tokens``."""


def _length_form(value: Any) -> str:
    return LENGTH_FORMS[isinstance(value, str)]


Length = Annotated[
    Annotated[Count, Tag(LENGTH_FORMS[0])] | Annotated[Literal["recorded"], Tag(LENGTH_FORMS[1])],
    Discriminator(_length_form),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1, "maximum": MOST}, {"const": "recorded"}]}),
]
"""Output length in tokens, or that of each row."""


class Load(Strict):
    """How many requests, and how fast. Each concurrency or rate gives one load point per repetition."""

    request_rate: SearchableRates = Field(
        default=None,
        description="requests/s that the client sends (Poisson arrivals), or a list, one load point each. `{search: {from: RATE, to: RATE, "
        "trials: 12}}` finds the highest rate that meets the latency targets (docs/how-to/latency-target.md)",
    )
    concurrency: SearchableConcurrency = Field(
        default=None,
        description="requests in flight, or a list, one load point each. Required unless `request_rate` is given; with it, the upper limit"
        ". `{search: {from: N, to: N, trials: 12}}` finds the highest concurrency that meets the latency targets. It measures at most "
        "`trials` times (docs/how-to/latency-target.md)",
    )
    requests: Counts | None = Field(
        default=None,
        description="number of requests of a load point, or a list with one number for each `concurrency` or `request_rate`. With "
        "`duration` and a concurrency: the upper limit. With `duration` and `request_rate`: leave it out. In a search of the concurrency "
        "without `duration`, a load has at least 5 for each slot",
    )
    duration: TimeSpan = Field(
        default=None,
        description="measuring time, such as `300s` or `5min`. No request starts after it; requests in flight complete. With "
        "`request_rate`, servemark computes the number of requests",
    )
    ramp_up: TimeSpan = Field(
        default=None, description="time over which the slots of a concurrency start one after another, such as `30s`; default: all at once"
    )
    repetitions: Count = Field(default=1, description="measurements of each load; each sends other prompts")
    seed: Amount = Field(default=1, description="number from which the seeds of the prompts are derived")
    warmups: Warmups = Field(
        default="auto",
        description="requests before the measured ones, with other prompts and at most 32 output tokens; `auto`: two for each slot (32 "
        "with a request rate alone), at most `requests`",
    )
    client_options: ClientOptions = Field(default={}, description="further options of `vllm bench serve`, without leading dashes")
    ask: Literal["endpoint", "replica"] = Field(
        default="endpoint",
        description="`endpoint`: requests go to the deployment's address; `replica`: to the first replica, past the router, which needs "
        "`topology.replicas` above 1 or `topology.balancing: router`",
    )
    api: Api = Field(
        default="completions",
        description="`completions`: the prompt goes to /v1/completions as it is; `chat`: it goes to /v1/chat/completions as one "
        "message of a user, a conversation with all its messages, and the server applies the chat template (docs/how-to/my-prompts.md)",
    )
    clients: Clients = Field(
        default=1,
        description="client processes that share the load of each point. `auto`: one for every 128 of its concurrency, and one if there is "
        "only a request rate. At most half of the cluster file's `cpus_per_node`, if that is set",
    )

    slo: Slo | None = Field(
        default=None,
        description="latency targets that the report compares the workload with; default: those of the run. Changing them measures nothing",
    )

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        self._can_search()
        rates, concurrency = (_ends(given) for given in (self.request_rate, self.concurrency))
        loads = rates or concurrency
        if loads is None:
            raise refuse("is missing: give `concurrency` or `request_rate`", at=("concurrency",))
        if rates and concurrency and len(concurrency) > 1 and not self.searched:
            raise refuse("takes one number next to `request_rate`; give a list for one of them only", at=("concurrency",))
        if self.requests is None and not (rates and self.duration):
            raise refuse("is missing" if not self.duration else "is missing: with `duration`, it is the upper limit", at=("requests",))
        if self.requests is not None and rates and self.duration:
            raise refuse("follows from `request_rate` and `requests`; leave one of them out", at=("duration",))
        if rates and self.ramp_up:
            raise refuse("needs a `concurrency` without `request_rate`, whose arrivals are spread already", at=("ramp_up",))
        if self.requests is not None and len(self.requests) not in (1, len(loads)) and not self.searched:
            swept = "request_rate" if rates else "concurrency"
            text = f"has {len(self.requests)} values and `{swept}` has {len(loads)}; give one for each, or one number for all"
            raise refuse(text, at=("requests",))
        # Each process needs a request and a slot.
        if self.clients != 1 and (whole := [name for name in self.client_options if name in WHOLE_LOAD_OPTIONS]):
            raise refuse(f"must be 1, because processes cannot share a load with `client_options.{whole[0]}`", at=("clients",))
        for given, text in ((concurrency, "of `concurrency`"), (self.requests, "`requests`")):
            if self.clients != "auto" and given and self.clients > min(given):
                raise refuse(f"is more than the {min(given):g} {text} of a point; each process needs at least one", at=("clients",))
        return self

    def _can_search(self) -> None:
        """Refuse keys that do not fit a search."""
        swept, other = self.request_rate, self.concurrency
        if isinstance(other, CountSearch) and swept:
            raise refuse("takes one number next to `request_rate`; search one of them", at=("concurrency",))
        if isinstance(swept, RateSearch) and isinstance(other, tuple) and len(other) > 1:
            raise refuse("takes one number next to a search of `request_rate`", at=("concurrency",))
        if self.searched and self.requests and len(self.requests) > 1:
            raise refuse("takes one number next to a search", at=("requests",))
        if self.searched and self.repetitions > 1:
            raise refuse("must be 1 next to a search, which repeats loads near its boundary by itself", at=("repetitions",))

    @property
    def searched(self) -> Range | None:
        """Return the range of a search, or None."""
        found = self.request_rate or self.concurrency
        return found.search if isinstance(found, CountSearch | RateSearch) else None

    def at(self, load: float, repetitions: int) -> Self:
        """Return the workload with this one load in place of its search."""
        update: dict[str, object] = {"repetitions": repetitions}
        if isinstance(self.request_rate, RateSearch):
            return self.model_copy(update=update | {"request_rate": (float(load),)})
        if self.requests and not self.duration:
            update["requests"] = (max(self.requests[0], REQUESTS_PER_SLOT * math.ceil(load)),)
        return self.model_copy(update=update | {"concurrency": (int(load),)})

    @property
    def rates(self) -> tuple[float, ...] | None:
        """Return the request rates; None without one, or if servemark searches it."""
        return self.request_rate if isinstance(self.request_rate, tuple) else None

    @property
    def concurrencies(self) -> tuple[int, ...] | None:
        """Return the concurrencies; None without one, or if servemark searches it."""
        return self.concurrency if isinstance(self.concurrency, tuple) else None

    def requests_of(self, loads: int) -> tuple[int, ...]:
        """Return the number of requests of each load."""
        if self.requests is None:
            assert self.rates and self.duration, "checked above"
            return tuple(max(1, round(rate * self.duration)) for rate in self.rates)
        return self.requests if len(self.requests) > 1 else self.requests * loads

    @property
    def prompts(self) -> AnyPrompts:
        """Return the prompts as plan and measurement record them."""
        return _PROMPTS.validate_python(self.model_dump(exclude=set(Load.model_fields)))


def _ends(given: tuple[float, ...] | CountSearch | RateSearch | None) -> tuple[float, ...] | None:
    """Return the loads, or both ends of a search."""
    return (given.search.low, given.search.high) if isinstance(given, CountSearch | RateSearch) else given


class RandomWorkload(Load, RandomPrompts):
    """Random tokens of fixed length."""


class StagedWorkload(Load):
    """Recorded prompts of a file or of a dataset of the hub."""

    dataset: DatasetSource = Field(description="source of the prompts: a mapping with exactly one of the keys `file`, `sharegpt` and `hf`")
    output_tokens: Length = Field(
        description="output length, tokens. `recorded`: each output has the length of its row. The row states it, or the model's tokenizer "
        "counts the recorded response. The end-of-text token is ignored"
    )
    share_prompts: Flag = Field(default=False, description="also put the prompts into the archive, not only their digest and lengths")

    @field_validator("dataset")
    @classmethod
    def _one_source(cls, source: DatasetSource) -> DatasetSource:
        given = [name for name in SOURCES if getattr(source, name) is not None]
        if len(given) != 1:
            raise refuse(f"needs exactly one of the keys {', '.join(f'`{name}`' for name in SOURCES)}")
        if empty := next((name for name in ("split", "subset", "column") if getattr(source, name) == ""), None):
            raise refuse("is empty: fill it in or remove the key", at=(empty,))
        if source.hf is None and (other := next((name for name in ("split", "subset", "column") if getattr(source, name)), None)):
            raise refuse("is only for datasets of the hub (`hf`)", at=(other,))
        if source.arrivals and source.file is None:
            raise refuse("is only for a `file`, whose rows have a `timestamp`", at=("arrivals",))
        if source.hf is not None and (hub.parse(source) is None):
            raise refuse(f"must be ORG/NAME@COMMIT, with all 40 hexadecimal digits of the commit, not {source.hf!r:.80}", at=("hf",))
        return source

    @model_validator(mode="after")
    def _can_keep_the_rhythm(self) -> Self:
        if not self.dataset.arrivals:
            return self
        if not self.request_rate:
            raise refuse("is missing: `arrivals: recorded` stretches the recorded times to it", at=("request_rate",))
        if self.clients != 1:
            raise refuse("must be 1, because several processes cannot keep the order of recorded arrivals", at=("clients",))
        if other := next((name for name in ("burstiness", "ramp-up-strategy") if name in self.client_options), None):
            raise refuse("has no effect on recorded arrivals", at=("client_options", other))
        return self

    @property
    def prompts(self) -> StagedPrompts:
        """Return the prompts as load points have them before planning."""
        recorded = self.output_tokens == "recorded"
        return StagedPrompts(
            dataset="staged",
            name=self.dataset.name,
            recorded=recorded,
            timed=self.dataset.arrivals is not None,
            # Before planning the longest output is unknown; no limit then shortens the warm-ups.
            output_tokens=MOST if self.output_tokens == "recorded" else self.output_tokens,
        )


class PrefixGroups(Strict):
    """Groups of prompts with a common beginning."""

    groups: Count = Field(description="number of groups; the requests of a load point are a multiple of it")
    prefix_tokens: Count = Field(description="tokens that all prompts of a group have at their beginning")
    suffix_tokens: Count = Field(description="further tokens of each prompt")


class PrefixSource(Strict):
    """Random prompts in groups."""

    prefix: PrefixGroups = Field(description="random prompts in groups with a common beginning (docs/how-to/my-prompts.md)")


class PrefixWorkload(Load):
    """Random tokens in groups with a common beginning."""

    dataset: PrefixSource = Field(description="source of the prompts")
    output_tokens: Count = Field(description="output length, tokens; the end-of-text token is ignored")

    @model_validator(mode="after")
    def _fits_the_groups(self) -> Self:
        groups = self.dataset.prefix.groups
        if odd := next((number for number in self.requests or () if number % groups), None):
            raise refuse(f"must be a multiple of the {groups} groups of the dataset, not {odd}", at=("requests",))
        if self.clients != 1:
            raise refuse("must be 1, because each process would make groups of its own", at=("clients",))
        return self

    def requests_of(self, loads: int) -> tuple[int, ...]:
        """Return the number of requests of each load, a multiple of the groups."""
        groups = self.dataset.prefix.groups
        return tuple(groups * math.ceil(number / groups) for number in super().requests_of(loads))

    @property
    def prompts(self) -> PrefixPrompts:
        """Return the prompts as plan and measurement record them."""
        asked = self.dataset.prefix
        return PrefixPrompts(
            dataset="prefix",
            groups=asked.groups,
            group_tokens=asked.prefix_tokens,
            own_tokens=asked.suffix_tokens,
            input_tokens=asked.prefix_tokens + asked.suffix_tokens,
            output_tokens=self.output_tokens,
        )


def _kind(value: Any) -> str | None:
    """Return the tag of a workload's kind: that of a text, ``prefix`` for a mapping with this key, or ``staged`` for another mapping."""
    if not isinstance(value, dict | Load):
        return "random"  # which reports that it is no mapping
    dataset = value.get("dataset") if isinstance(value, dict) else getattr(value, "dataset", None)
    if isinstance(dataset, PrefixSource) or (isinstance(dataset, dict) and "prefix" in dataset):
        return "prefix"
    return "staged" if isinstance(dataset, dict | DatasetSource) else None if dataset is None else str(dataset)


Workload = Annotated[
    Annotated[RandomWorkload, Tag("random")] | Annotated[StagedWorkload, Tag("staged")] | Annotated[PrefixWorkload, Tag("prefix")],
    Discriminator(_kind),
]
KINDS: dict[str, type[Load]] = {"random": RandomWorkload, "staged": StagedWorkload, "prefix": PrefixWorkload}
"""Kind by tag: see :func:`_kind`."""
CHOICES = ("random", *(f"{{{name}: ...}}" for name in (*SOURCES, "prefix")))
"""Values of ``dataset``, for messages."""
