"""Published numbers as one side of a comparison: a YAML file of metrics without repetitions."""

import datetime
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, Field, ValidationError, model_validator

from servemark.compare.errors import NotComparable
from servemark.compare.metrics import METRICS
from servemark.config import positions
from servemark.config.field_types import OptionValue, VariableValue, refuse
from servemark.config.problems import Problem, config_error, from_pydantic
from servemark.config.topology import AskedTopology
from servemark.errors import ConfigError
from servemark.records import LoadPoint, Measurement, RandomPrompts, Strict, Summary
from servemark.records.base import Count
from servemark.weights import hub_source

_DO = "Correct the file. config/references has an example, and docs/how-to/compare.md explains each key."


def _model(value: str) -> str:
    if hub_source.parse(value) is None or "@" not in value:
        raise refuse("must be hf:ORG/NAME@REVISION, a model of the hub with its branch, tag or commit")
    return value


Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Load(Strict):
    """A load and its published metrics."""

    dataset: Literal["random"] = Field(description="source of the prompts")
    input_tokens: Count
    output_tokens: Count
    concurrency: Count | None = None
    request_rate: Positive | None = Field(default=None, description="requests per second")
    requests: Count
    metrics: dict[str, Positive] = Field(min_length=1, description="by name in --gate; tokens per second, milliseconds")

    @model_validator(mode="after")
    def _known(self) -> "Load":
        if unknown := [name for name in self.metrics if name not in METRICS]:
            raise refuse("is not a metric", allowed=METRICS, at=("metrics", unknown[0]))
        if self.concurrency is None and self.request_rate is None:
            raise refuse("is missing: give `concurrency` or `request_rate`", at=("concurrency",))
        return self


class Deployment(Strict):
    """A deployment as its source describes it."""

    topology: AskedTopology = AskedTopology()
    options: dict[str, OptionValue] = Field(default={}, description="options of `vllm serve`, all that are published")
    variables: dict[str, VariableValue] = Field(default={}, description="environment variables of the server, all that are published")
    loads: tuple[Load, ...] = Field(min_length=1)


class Reference(Strict):
    """A reference file."""

    name: str
    source: str = Field(description="title and place of the publication")
    date: datetime.date | None = Field(default=None, description="date of the measurement or of the publication")
    model: Annotated[str, AfterValidator(_model)] = Field(description="hf:ORG/NAME@REVISION")
    software: dict[str, str] = Field(description="versions by name, such as vLLM and torch")
    hardware: dict[str, str] = Field(description="the names of a comparison's hardware, such as GPUs and node")
    deployments: dict[str, Deployment] = Field(min_length=1)


def read(path: Path) -> Reference:
    """Return a reference file.

    Raises:
        NotComparable: ``bad_reference``; the message names each problem.
    """
    try:
        source = positions.read(path)
    except ConfigError as error:
        raise _refused(path, error.what) from None
    if not isinstance(source.data, dict):
        raise _refused(path, "It is empty." if source.data is None else "It has no keys at the top level.")
    found, problems = None, []
    try:
        found = Reference.model_validate(source.data)
    except ValidationError as error:
        problems = list(_problems(error, source.data))
    if found is None or source.duplicates:
        raise _refused(path, config_error(problems, source.data, [source]).what.partition("\n")[2])
    return found


def _problems(error: ValidationError, data: Any) -> Iterator[Problem]:
    """Yield the problems as for a configuration, but with the allowed keys of a reference."""
    unknown = {item["loc"] for item in error.errors(include_url=False) if item["type"] == "extra_forbidden"}
    for problem in from_pydantic(error, data):
        allowed = tuple(_home(problem.loc).model_fields)
        yield Problem(problem.loc, "is an unknown key", allowed, given=str(problem.loc[-1])) if problem.loc in unknown else problem


def _home(loc: tuple[Any, ...]) -> type[BaseModel]:
    """Return the type of the mapping that holds a key."""
    if loc[2:3] == ("topology",) and len(loc) > 3:
        return AskedTopology
    homes: dict[int, type[BaseModel]] = {1: Reference, 3: Deployment}
    return homes.get(len(loc), Load)


def _refused(path: Path, fault: str) -> NotComparable:
    return NotComparable(f"{path} is not a reference file.\n{fault}", do=_DO, reason="bad_reference")


def measurements(reference: Reference) -> list[Measurement]:
    """Return one measurement for each load, with NaN for each latency that is not published.

    They let table, medians and plots show the reference as they show a run.
    """
    return [
        _measurement(name, f"load-{number}", load)
        for name, deployment in reference.deployments.items()
        for number, load in enumerate(deployment.loads, 1)
    ]


def _measurement(deployment: str, name: str, load: Load) -> Measurement:
    prompts = RandomPrompts(dataset=load.dataset, input_tokens=load.input_tokens, output_tokens=load.output_tokens)
    asked = {"concurrency": load.concurrency, "request_rate": load.request_rate, "requests": load.requests}
    return Measurement(
        deployment=deployment,
        load=LoadPoint(name=name, workload=name, prompts=prompts, repetition=1, seed=0, warmups=0, **asked),  # type: ignore[arg-type]
        key="",
        key_parts={},
        verdict="VALID",
        completed=load.requests,
        output_throughput=load.metrics.get("throughput"),
        total_throughput=load.metrics.get("total_throughput"),
        **{f"{metric}_ms": _summary(load, metric) for metric in ("ttft", "tpot", "e2el")},  # type: ignore[arg-type]
    )


def _summary(load: Load, metric: str) -> Summary:
    known: dict[str, Any] = {
        statistic: load.metrics.get(f"{statistic}_{metric}", math.nan) for statistic in ("mean", "std", "p50", "p95", "p99", "max")
    }
    return Summary(count=load.requests, **known)
