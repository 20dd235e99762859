"""Deployments and load points that a run is going to start and measure."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import Field

from servemark.records.accuracy import Accuracy, PlannedCheck
from servemark.records.base import Record, Strict
from servemark.records.choice import TopologyChoice
from servemark.records.load_point import LoadPoint, embed
from servemark.records.search import PlannedPoint, PlannedSearch, Search
from servemark.records.topology import Topology


class Estimate(Strict):
    """Memory that planning expects. 1 GiB is 2**30 bytes. Null: not estimated."""

    weights_gib: float | None = Field(description="weights on one rank; if the KV cache is not estimated, an equal share of the checkpoint")
    kv_bytes_per_token: int | None = Field(default=None, description="KV cache bytes of one token over all attention layers, on one rank")
    kv_cache_gib: float | None = Field(default=None, description="memory left for the KV cache on one rank")
    kv_cache_tokens: int | None = Field(default=None, description="capacity of one engine's KV cache, tokens")
    max_concurrency: float | None = Field(default=None, description="requests of max_model_len tokens that fit at once")
    max_model_len: int
    state_bytes_per_request: int = Field(
        default=0, description="bytes of the Mamba or linear attention states of one request, on one rank; 0: no such layers"
    )
    not_estimated: str | None = Field(default=None, description="why the KV cache is not estimated; null: it is")


class Plan(Record):
    """A legal deployment with its load points. plan_deployment writes it."""

    KIND = "plan"
    VERSION = 2
    deployment: str
    model: str
    environment: str
    model_digest: str
    environment_digest: str
    served_name: str
    topology: Topology
    options: dict[str, Any]
    variables: dict[str, str] = Field(
        description="the deployment's and the cluster's (the deployment's take precedence), and those that turn FlashInfer off"
    )
    all_reduce: tuple[str, ...] = Field(default=(), description="all-reduces expected between tensor parallel ranks, in vLLM's order")
    inherited: dict[str, str] = Field(default={}, description="inherited variables that decide results; the ledger key contains them")
    modules: tuple[str, ...] = Field(default=(), description="modules that are loaded on every node before any process starts")
    estimate: Estimate | None = None
    warnings: tuple[str, ...] = ()
    choice: TopologyChoice | None = Field(
        default=None, description="the choice of `topology: auto`; null: the configuration has the topology"
    )
    measured: tuple[str, ...] = Field(
        default=(),
        description="with `topology: auto`: what the ledger has measured of the model on such GPUs, a sentence for each topology",
    )
    points: tuple[PlannedPoint, ...]
    searches: tuple[PlannedSearch, ...] = Field(default=(), description="run after the points; their trials are in search.json")
    checks: tuple[PlannedCheck, ...] = Field(
        default=(), exclude_if=lambda checks: not checks, description="accuracy checks, which run after points and searches"
    )
    contents: dict[str, str] = Field(default={}, description="path in options or variables -> sha256 of its content, which is in the key")
    key_format: int = Field(default=2, description="form of the ledger keys")
    key_parts: dict[str, Any] = Field(description="the deployment's part of every point's ledger key")

    @property
    def loads(self) -> list[LoadPoint]:
        """The load points without their ledger keys."""
        return [point.load for point in self.points]

    def with_trials(self, searches: Iterable[Search]) -> "Plan":
        """Return the plan with the trials of its searches as further points."""
        trials = tuple(trial.point for search in searches for trial in search.trials)
        return self.model_copy(update={"points": self.points + trials}) if trials else self

    def load_of(self, workload: str) -> LoadPoint | None:
        """Return the first load point of a workload; all of them have the same kind of prompts and the same target."""
        return next((load for load in self.loads if load.workload == workload), None)

    def asked_by(self, workload: str) -> Topology:
        """Return the part of the topology that serves a workload's requests: one replica for ``ask: replica``, else all of it."""
        load = self.load_of(workload)
        return self.topology.asked(load.ask if load else "endpoint")

    @classmethod
    def upgraded(cls, data: Any, version: Any) -> dict[str, Any] | None:
        """Return a plan of version 1 in the form of version 2."""
        return data | {"points": [embed(point) for point in data["points"]]} if version == 1 else None


def read_with_trials(deployment: Path) -> Plan:
    """Return the plan in a deployment's folder with the trials of its ended searches; raise ServemarkError if it cannot be read."""
    plan = Plan.read(deployment / "plan.json")
    paths = [Search.path(deployment, search.workload) for search in plan.searches]
    return plan.with_trials([Search.read(path) for path in paths if path.exists()])


def record_files(run_folder: Path, deployments: Iterable[str]) -> list[Path]:
    """Return the paths of the records of all planned points and trials; raise ServemarkError if a plan cannot be read."""
    folders = [run_folder / "deployments" / name for name in deployments]
    return [folder / "points" / f"{load.name}.json" for folder in folders for load in read_with_trials(folder).loads]


def accuracy_files(run_folder: Path, deployment: str) -> list[Path]:
    """Return the paths of the records of a deployment's planned accuracy checks; raise ServemarkError if its plan cannot be read."""
    folder = run_folder / "deployments" / deployment
    return [Accuracy.path(folder, check.name) for check in Plan.read(folder / "plan.json").checks]


class Plans(Record):
    """Every deployment of the run has a plan. confirm_plans writes it; nothing starts without it."""

    KIND = "plans"
    load_points: dict[str, int] = Field(description="number of load points by deployment, with the most trials of its searches")
