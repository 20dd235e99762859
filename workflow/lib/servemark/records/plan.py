"""What is going to be started and measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, Protocol

from pydantic import Field

from servemark.records.base import Record, Strict
from servemark.records.topology import Topology

PREFIX = "random-prefix-len"
"""Option of the client: so many tokens, drawn once, stand before each prompt's own ``input_tokens``.

Source: vllm/benchmarks/datasets, RandomDataset, ``total_input_len = prefix_len + int(input_len)`` (0.32.0).
"""


class Estimate(Strict):
    """What planning expects, per rank where not said otherwise. GiB are 2**30 bytes."""

    weights_gib: float = Field(description="weights on one rank")
    kv_bytes_per_token: int = Field(description="KV cache bytes of one token over all layers, on one rank")
    kv_cache_gib: float = Field(description="memory left for the KV cache on one rank")
    kv_cache_tokens: int = Field(description="tokens the KV cache of one engine holds")
    max_concurrency: float = Field(description="requests of max_model_len tokens that fit at once")
    max_model_len: int


class PlannedPoint(Strict):
    """One load point of a deployment."""

    name: str
    workload: str
    concurrency: int | None
    request_rate: float | None = None
    repetition: int
    seed: int
    requests: int
    input_tokens: int = Field(description="of each prompt, without what `client_options` put before it")
    output_tokens: int
    warmups: int
    warmup_tokens: int | None = Field(
        default=None,
        description="tokens of a warm-up's answer, at most; none: vLLM's own warm-ups, the first prompt with its full answer",
    )
    client_options: dict[str, Any] = {}
    clients: int = Field(default=1, description="processes of the client that share the load")
    ask: Literal["endpoint", "replica"] = Field(
        default="endpoint", description="the deployment's one address, or the first replica's server past the router"
    )
    key: str = Field(description="ledger key, sha256 hex")


class Prompted(Protocol):
    """What says how long the prompts of a load are: a workload, or one of its points."""

    @property
    def input_tokens(self) -> int:
        """Input tokens of a request."""

    @property
    def client_options(self) -> Mapping[str, Any]:
        """Options of the benchmark client."""


def prefix_tokens(load: Prompted) -> int:
    """Return tokens that all prompts of a load begin with, before their own."""
    return int(str(load.client_options.get(PREFIX) or 0))


def prompt_tokens(load: Prompted) -> int:
    """Return tokens of each prompt that the client sends: those asked for, after the prefix that all have in common."""
    return prefix_tokens(load) + load.input_tokens


class Plan(Record):
    """A deployment that is known to be legal, with its points. Written by plan_deployment."""

    KIND = "plan"
    deployment: str
    model: str
    environment: str
    model_digest: str
    environment_digest: str
    served_name: str
    topology: Topology
    options: dict[str, Any]
    variables: dict[str, str] = Field(
        description="the cluster's variables under the deployment's own, and those that turn off what the nodes cannot build"
    )
    all_reduce: tuple[str, ...] = Field(
        default=(), description="expected all-reduces between tensor parallel ranks, in vLLM's names and order"
    )
    inherited: dict[str, str] = Field(
        default={},
        description="variables of the shell that reach the server and decide; part of the key as if they were given",
    )
    modules: tuple[str, ...] = Field(default=(), description="loaded on every node before anything is started")
    estimate: Estimate | None = None
    warnings: tuple[str, ...] = ()
    points: tuple[PlannedPoint, ...]
    key_parts: dict[str, Any] = Field(description="the deployment's share of every point's ledger key")

    def asked_by(self, workload: str) -> Topology:
        """Return the part of the topology that a workload's requests go to: one replica where it asks one past the router."""
        return self.topology.asked(next((point.ask for point in self.points if point.workload == workload), "endpoint"))


def record_files(run_folder: Path, deployments: Iterable[str]) -> list[Path]:
    """Return the paths of the records of all planned points, deployment by deployment.

    Raises:
        ServemarkError: a plan is missing or cannot be read.
    """
    folders = [run_folder / "deployments" / name for name in deployments]
    return [
        folder / "points" / f"{point.name}.json"
        for folder in folders
        for point in Plan.read(folder / "plan.json").points
    ]


class Plans(Record):
    """Every deployment of the run has a plan. Written by confirm_plans; nothing is started without it."""

    KIND = "plans"
    load_points: dict[str, int] = Field(description="number of load points by deployment")
