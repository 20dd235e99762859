"""Published numbers as one side of a comparison: a YAML file of metrics without repetitions."""

import datetime
import math
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from servemark.compare.errors import NotComparable
from servemark.compare.metrics import METRICS
from servemark.config import positions
from servemark.config.problems import dotted
from servemark.config.topology import AskedTopology
from servemark.records import LoadPoint, Measurement, RandomPrompts, Strict, Summary
from servemark.records.base import Count

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Value = str | int | float | bool


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
            raise ValueError(f"unknown metric {unknown[0]!r}; allowed: {', '.join(METRICS)}")
        return self


class Deployment(Strict):
    """A deployment as its source describes it."""

    topology: AskedTopology = AskedTopology()
    options: dict[str, Value] = Field(default={}, description="options of `vllm serve`, all that are published")
    variables: dict[str, Value] = Field(default={}, description="environment variables of the server, all that are published")
    loads: tuple[Load, ...] = Field(min_length=1)


class Reference(Strict):
    """A reference file."""

    name: str
    source: str = Field(description="title and place of the publication")
    date: datetime.date | None = Field(default=None, description="date of the measurement or of the publication")
    model: str = Field(description="hf:ORG/NAME@REVISION")
    software: dict[str, str] = Field(description="versions by name, such as vLLM and torch")
    hardware: dict[str, str] = Field(description="the names of a comparison's hardware, such as GPUs and node")
    deployments: dict[str, Deployment] = Field(min_length=1)


def read(path: Path) -> Reference:
    """Return a reference file.

    Raises:
        ConfigError: the file is missing or is not YAML.
        NotComparable: ``bad_reference``; the message names each problem.
    """
    source = positions.read(path)
    try:
        return Reference.model_validate(source.data)
    except ValidationError as error:
        found = [(positions.find([source], source.data, item["loc"]), item) for item in error.errors(include_url=False)]
        lines = [f"  {path}:{place[1] if place else 1}: {dotted(item['loc'])}: {item['msg']}" for place, item in found]
        raise NotComparable(
            "\n".join([f"{path} is not a reference file: {len(lines)} problem(s) found.", *lines]),
            do="Correct the listed keys. config/references has an example, and docs/how-to/compare.md explains each key.",
            reason="bad_reference",
        ) from None


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
