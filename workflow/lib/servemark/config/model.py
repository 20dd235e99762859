"""The types of the configuration: frozen, without unknown keys, every key described."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    WithJsonSchema,
    field_serializer,
    field_validator,
    model_validator,
)

from servemark.config.after import Command, Exports
from servemark.config.checks import Check, CheckName
from servemark.config.cluster import Site
from servemark.config.container import Container
from servemark.config.field_types import (
    Accepted,
    Flag,
    Location,
    Lock,
    Name,
    Port,
    RunName,
    Seconds,
    ServedName,
    ServeOptions,
    Source,
    Variables,
    distinct,
    reference,
    refuse,
)
from servemark.config.prices import Prices
from servemark.config.slo import Slo
from servemark.config.topology import AUTO, AskedTopology, AutomaticTopology, automatic, schema_with_auto
from servemark.config.workload import Workload
from servemark.measurement.thresholds import Verdict
from servemark.records import Strict
from servemark.records.restarts import MOST


class Model(Strict):
    """Weights and tokenizer."""

    source: Source = Field(
        description="source of the model: `builtin:tiny-dense` or `builtin:tiny-moe` (servemark makes them, with random weights), a "
        "folder, also a snapshot of a Hugging Face cache, or `hf:ORG/NAME@REVISION` of the Hugging Face hub. REVISION is a branch, a tag "
        "or a commit; default `main`. servemark takes it from a Hugging Face cache on this machine, else fetches it once from the hub. "
        "It asks the hub for the commit of a branch or tag. If that fails temporarily, it takes the commit that a cache has stored. "
        "For a gated or private model, export `HF_TOKEN` where snakemake starts, or log in with `hf auth login`. Keep `stage_on: login` in "
        "the cluster file"
    )
    served_name: ServedName | None = Field(
        default=None,
        description="name of the model for clients, such as `openai/gpt-oss-120b`; default its key under `models`. It is no part of the "
        "ledger key",
    )
    trust_remote_code: Flag = Field(
        default=False, description="let server and client run Python code from the model's folder; the plan and every measurement state it"
    )
    load_format: Literal["auto", "dummy"] = Field(
        default="auto",
        description="`auto`: the checkpoint's weights. `dummy`: random weights of the model's shape that choose experts evenly. servemark "
        "then fetches config and tokenizer only. The results describe speed alone; plan and report state that",
    )


class Environment(Strict):
    """The interpreter that runs vLLM: exactly one of the keys."""

    lock: Lock | None = Field(
        default=None,
        description="build it from the lock file envs/NAME.lock: `cpu`, `cuda12` (NVIDIA driver 525 or newer, x86_64), `cuda13` (driver "
        "580 or newer, x86_64 and aarch64), or `auto`, which chooses by the probed machine (docs/reference/environments.md). Or the path "
        "of your own lock file (docs/how-to/own-environment.md)",
    )
    wheels: Location | None = Field(
        default=None,
        description="with `lock`: install from this folder, made by `servemark bundle`, without a package index "
        "(docs/how-to/no-internet.md)",
    )
    prefix: Location | None = Field(default=None, description="use an existing environment: the folder that holds bin/python")
    container: Container | None = Field(default=None, description="use a container image (docs/how-to/container.md)")

    @model_validator(mode="after")
    def _exactly_one(self) -> Environment:
        keys = ("lock", "prefix", "container")
        given = [key for key in keys if getattr(self, key) is not None]
        if len(given) != 1:
            raise refuse(f"takes exactly one of `lock`, `prefix` and `container`; it has {' and '.join(given) or 'none'}", allowed=keys)
        if self.wheels is not None and self.lock is None:
            raise refuse("is for an environment that servemark builds; remove it or set `lock`", at=("wheels",))
        return self


class Deployment(Strict):
    """One live endpoint: model, environment, topology and the server's options."""

    model: Annotated[str, reference("models")] = Field(description="a name under `models`")
    environment: Annotated[str, reference("environments")] = Field(description="a name under `environments`")
    topology: Annotated[AskedTopology, BeforeValidator(automatic)] = Field(
        default_factory=AskedTopology,
        json_schema_extra=schema_with_auto,
        description="ranks, and the executor that starts them; default one process. `auto`: the first topology that `servemark plan` ranks "
        "for the nodes of this run; results/RUN/topologies.json keeps the choice (docs/explanation/planning.md)",
    )
    options: ServeOptions = Field(
        default={},
        description="options of `vllm serve` without leading dashes; `true` is the bare flag. `max-cudagraph-capture-size: workload` "
        "captures CUDA graphs up to the most requests that the load points send to one engine. `cudagraph-capture-sizes: workload` "
        "captures fewer sizes up to the same limit (about 20 for 512, where vLLM has 51), so the server starts faster. Both are part of "
        "the ledger key: if you later add a concurrency that needs a new size, servemark measures all points again",
    )
    options_file: Location | None = Field(
        default=None,
        description="a YAML file of `vllm serve --config`. servemark merges it below `options` and checks it in the same way; an option in "
        "`options` takes precedence. Plan and ledger key have its content, not its path",
    )
    variables: Variables = Field(default={}, description="environment variables of the server; no secrets")
    workloads: Annotated[tuple[Annotated[str, reference("workloads")], ...], Field(min_length=1), AfterValidator(distinct)] | None = Field(
        default=None, description="names under `workloads`, in the order they run; default all"
    )
    checks: dict[CheckName, Check] = Field(
        default={},
        # A configuration without checks has the text, and so the plan, of one before there were any.
        exclude_if=lambda checks: not checks,
        description="accuracy checks by name, which run on the live server after the load points: `gsm8k: {limit: 200, min: 0.90}`. The "
        "name is that of a task of lm-eval (docs/how-to/accuracy.md)",
    )
    port: Port = Field(default="auto", description="the server's port; `auto` finds a free one")
    compile_cache: Literal["keep", "none"] = Field(
        default="keep",
        description="`keep`: compiled code stays in the cache, so a later start takes a third to a half of the time. `none`: an empty "
        "folder for each start, to measure first starts. Affects start-up time only; variables such as `VLLM_CACHE_ROOT` take precedence",
    )

    @field_serializer("topology", mode="wrap")
    def _auto(self, topology: AskedTopology, serialize: SerializerFunctionWrapHandler) -> Any:
        return AUTO if isinstance(topology, AutomaticTopology) else serialize(topology)

    @field_validator("options")
    @classmethod
    def _weights(cls, options: dict[str, Any]) -> dict[str, Any]:
        # servemark_*: names of our own loader (random_weights.LOAD_FORMAT).
        if str(options.get("load-format")).startswith(("dummy", "servemark_")):
            raise refuse("set `load_format: dummy` of the model instead, so that records state it", at=("load-format",))
        if options.get("load-format") in ("pt", "npcache"):
            raise refuse("loads Python pickles, which run code and which servemark does not hash; use safetensors", at=("load-format",))
        return options


class Sweep(Strict):
    """Variants of one deployment or workload, which replace the original."""

    over: str = Field(pattern=r"^(deployments|workloads)\.[a-z0-9][a-z0-9.-]*$", description="`deployments.NAME` or `workloads.NAME`")
    grid: dict[str, tuple[Any, ...]] | None = Field(
        default=None, description="every combination of `key: [values]`; a dot leads to a key inside (`options.max-num-seqs`)"
    )
    zip: dict[str, tuple[Any, ...]] | None = Field(
        default=None, description="`key: [values]`: the first values together, then the second ones"
    )

    @field_validator("over")
    @classmethod
    def _known(cls, over: str, info: ValidationInfo) -> str:
        room, name = over.split(".", 1)
        known = (info.context or {}).get(room)
        if known is not None and name not in known:
            raise refuse(f"there is no such name under `{room}`", allowed=[f"{room}.{other}" for other in known])
        return over

    @model_validator(mode="after")
    def _one_way(self) -> Sweep:
        if (self.grid is None) == (self.zip is None):
            raise refuse("takes exactly one of `grid` and `zip`")
        way, axes = ("zip", self.zip) if self.grid is None else ("grid", self.grid)
        if not axes:
            raise refuse("must not be empty", at=(way,))
        for key, values in axes.items():
            if not values:
                raise refuse(f"`{key}` has no values", at=(way,))
            if any(isinstance(value, dict) for value in values):
                raise refuse(f"`{key}` takes values or lists; sweep the keys inside it instead", at=(way,))
        if way == "zip" and len({len(values) for values in axes.values()}) > 1:
            lengths = ", ".join(f"{key} {len(values)}" for key, values in axes.items())
            raise refuse(f"the lists of a `zip` must have the same length; these have: {lengths}")
        return self


class Timeouts(Strict):
    """How long servemark waits before it treats something as stuck, in seconds."""

    build: Seconds = Field(default=3600.0, description="s; building an environment")
    cluster: Seconds = Field(default=120.0, description="s; for each of these: checking the nodes, starting Ray, checking the fabric")
    copy_model: Seconds = Field(default=3600.0, description="s; copying a model to the nodes' own disks (`local_models`)")
    start: Seconds = Field(default=1800.0, description="s; until the server responds to a completion")
    stall: Seconds = Field(default=300.0, description="s; without a new line in the log of a starting server")
    point: Seconds = Field(default=7200.0, description="s; one load point")
    no_progress: Seconds = Field(default=120.0, description="s; without a generated token while requests are in flight")
    stop: Seconds = Field(default=30.0, description="s; from SIGTERM until servemark kills the server")


class Config(Strict):
    """One run of the workflow."""

    run: RunName = Field(description="name of the run; its results go to results/NAME/")
    models: dict[Name, Model] = Field(min_length=1, description="models by name")
    environments: dict[Name, Environment] = Field(min_length=1, description="environments by name")
    deployments: dict[Name, Deployment] = Field(min_length=1, description="deployments by name")
    workloads: dict[Name, Workload] = Field(min_length=1, description="workloads by name; `dataset` decides which further keys one has")
    sweeps: tuple[Sweep, ...] = Field(default=(), description="variants of deployments and workloads")
    order: Literal["interleaved", "grouped"] = Field(
        default="interleaved",
        description="order of a deployment's load points. `interleaved`: the first repetition of every load, then the second one, so that "
        "a drift of the machine does not look like an effect of the load. `grouped`: all repetitions of a load, then the next load",
    )
    restarts: Annotated[int, Field(strict=True, ge=0, le=MOST)] = Field(
        default=0,
        description="how many more times the servers of each deployment are started. The repetitions are divided among the starts. With "
        "3 repetitions and `restarts: 2`, each start measures one, so the intervals also cover the spread between starts",
    )
    cluster: Annotated[Site | None, WithJsonSchema({"type": ["string", "null"], "minLength": 1})] = Field(
        default=None, description="NAME of config/clusters/NAME.yaml or the path of a cluster file; default this machine"
    )
    # After `cluster`, which may override it.
    cache: Location = Field(
        default=Path("results/cache"),
        validate_default=True,
        description="folder that runs share: environments, models, compiled code, ledger; a cluster file's `cache` takes precedence",
    )
    hub_cache: Location | None = Field(
        default=None,
        description="a further Hugging Face cache, such as a site's shared one, where servemark looks for `hf:` models before it fetches "
        "them: the folder that has `models--ORG--NAME` folders. It always looks in those of `HF_HUB_CACHE` "
        "and `HF_HOME` and in `~/.cache/huggingface/hub`",
    )
    share_ledger: Flag = Field(default=False, description="true: all runs with this cache share one ledger of finished measurements")
    verdict: Verdict = Field(default_factory=Verdict, description="thresholds of a measurement's verdict")
    prices: Prices | None = Field(
        default=None, description="prices for the cost of a million output tokens in the report; no other file uses them"
    )
    slo: Slo | None = Field(default=None, description="latency targets of all workloads without their own (`workloads.NAME.slo`)")
    exports: Exports = Field(
        default=(),
        description="formats of other projects for accepted measurements: `inferencex`, `llmd-br-0.2.1`. Written to results/RUN/exports/ "
        "and archived (docs/how-to/export.md)",
    )
    publish: Command | None = Field(
        default=None,
        description="command that runs once after the final check, for example to upload the archive. `{archive}` stands for the archive's "
        "path; without it, the path is the last word. No shell runs it; no secrets (docs/how-to/export.md)",
    )
    timeouts: Timeouts = Field(default_factory=Timeouts, description="time limits, in seconds")
    accept_invalid: Accepted = Field(
        default=(),
        description="INVALID points that the final check accepts as gaps: `false` (none), `true` (all) or patterns such as "
        "`plain/chat-c8-*`. Each pattern must fit a load point or an accuracy check",
    )

    @field_validator("models")
    @classmethod
    def _served_names(cls, models: dict[str, Model]) -> dict[str, Model]:
        names: dict[str, str] = {}
        for name, model in models.items():
            served = model.served_name or name
            if other := names.get(served):
                place = (name, "served_name") if model.served_name else (other, "served_name")
                raise refuse(f"models.{other} and models.{name} have the same served name; give each model its own", at=place)
            names[served] = name
        return models

    def served_name(self, model: str) -> str:
        """Return the name under which clients know a model."""
        return self.models[model].served_name or model

    @property
    def ledger_folder(self) -> Path:
        """Folder of finished measurements: in the cache if runs share them, else in the run's results."""
        return (self.cache if self.share_ledger else Path("results") / self.run) / "ledger"

    @field_validator("cache")
    @classmethod
    def _outside_results(cls, cache: Path, info: ValidationInfo) -> Path:
        cluster = info.data.get("cluster")
        cache = (cluster and cluster.cache) or cache
        results = os.path.abspath(os.path.join("results", info.data.get("run", ".")))
        place = os.path.abspath(cache)
        if "run" in info.data and os.path.commonpath([results, place]) in (results, place):
            raise refuse(f"the cache and this run's results (results/{info.data['run']}) must not contain one another")
        return cache
