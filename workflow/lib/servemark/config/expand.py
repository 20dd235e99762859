"""Expand sweeps to variants and workloads to load points: pure functions of the configuration."""

import hashlib
import itertools
import json
import math
import re
from collections import Counter
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from servemark.config import option_problems, options_files
from servemark.config.field_types import MAX_CLIENTS, NAME_LENGTH, label
from servemark.config.model import Config, Deployment, Sweep
from servemark.config.problems import Loc, Problem, config_error, from_pydantic
from servemark.config.reserved import kebab
from servemark.config.restarts import deployment_of, measures
from servemark.config.workload import Load, Workload
from servemark.records import LoadPoint
from servemark.records.restarts import restart_of
from snakemake_executor_plugin_slurm_guarded.secret_names import looks_secret

MAX_POINTS = 20_000
"""Load points of one run: 1,000 deployments of 20 points each."""
MAX_VARIANTS = 1000
"""Variants of one sweep: each is a whole deployment, or a workload with all its load points."""
STREAMS_PER_CLIENT = 128
"""For `clients: auto`. One process of vLLM's client keeps up with `client_chunks` (planning/advice.yaml)."""
WARMUPS_PER_SLOT = 2
"""The first warm-up of a slot runs while the server reads prompts, the second one while it also decodes: other shapes and kernels."""
WARMUPS_WITHOUT_CONCURRENCY = 32
WARMUP_TOKENS = 32
"""Output tokens of a warm-up. The prompt and the first decode steps trigger all compilation."""


def expand(config: Config) -> Config:
    """Return the configuration with every sweep replaced by its variants; raise ConfigError for an invalid variant or a duplicate name.

    A variant has the name NAME-KEY-VALUE, with the last part of the key, and the original's place in the order. A deployment that names a
    swept workload gets all its variants.
    """
    expanded, found = try_expand(config)
    if found:
        raise config_error(found, config.model_dump(mode="json", exclude_unset=True), ())
    return expanded


def _too_many(config: Config) -> list[Problem]:
    """Return a problem if the run has more than ``MAX_POINTS`` load points. This only counts them: all of them could fill the memory."""
    named = Counter(name for deployment in config.deployments.values() for name in deployment.workloads or ())
    unnamed = sum(deployment.workloads is None for deployment in config.deployments.values())
    counts = {name: (unnamed + named[name]) * _points_at_most(workload) for name, workload in config.workloads.items()}
    if sum(counts.values()) <= MAX_POINTS:
        return []
    name = max(counts, key=counts.__getitem__)
    workload = config.workloads[name]
    swept = "request_rate" if workload.request_rate else "concurrency"
    key = "repetitions" if workload.repetitions >= _points_at_most(workload) / workload.repetitions else swept
    text = (
        f"makes {counts[name]:,} of this run's {sum(counts.values()):,} load points (deployments x {swept} x repetitions), and a run "
        f"may have at most {MAX_POINTS:,}; divide the experiment into several runs"
    )
    return [Problem(("workloads", name, key), text)]


def _points_at_most(workload: Load) -> int:
    """Return the load points of a workload on one deployment; for a search, the most trials."""
    found = workload.searched
    return found.trials if found else workload.repetitions * len(workload.rates or workload.concurrencies or ())


def try_expand(config: Config) -> tuple[Config, list[Problem]]:
    """Return the expanded configuration and its problems, at places in ``sweeps``."""
    found = _too_many(config)
    if found or not config.sweeps:
        return config, found
    swept = [sweep.over for sweep in config.sweeps]
    if twice := [index for index, over in enumerate(swept) if over in swept[:index]]:
        return config, [
            Problem(("sweeps", i, "over"), f"an earlier sweep has {swept[i]} too; put all its keys into one sweep") for i in twice
        ]
    # Deployments first: they are checked against the names of the workloads before a sweep changes these.
    order = sorted(enumerate(config.sweeps), key=lambda item: item[1].over.split(".", 1)[0])
    for index, sweep in order:
        config, more = _apply(config, sweep, ("sweeps", index))
        found += more
        if problem := _too_many(config):
            return config, [*found, *problem]
    return config.model_copy(update={"sweeps": ()}), found


def _apply(config: Config, sweep: Sweep, loc: Loc) -> tuple[Config, list[Problem]]:
    room, name = sweep.over.split(".", 1)
    entries: dict[str, Any] = getattr(config, room)
    kind: type[Deployment] | type[Load] = type(entries[name])
    context = {room: getattr(config, room) for room in ("models", "environments", "workloads", "cluster")}
    way, axes = ("grid", sweep.grid) if sweep.grid else ("zip", sweep.zip or {})
    total = math.prod(map(len, axes.values())) if way == "grid" else len(next(iter(axes.values())))
    if total > MAX_VARIANTS:
        return config, [Problem((*loc, way), f"makes {total} variants; the limit is {MAX_VARIANTS}")]
    found = [fault for key in axes if (fault := _bad_key(kind, key, (*loc, way, key)))]
    if len({_path(key) for key in axes}) < len(axes):
        found.append(Problem((*loc, way), "contains the same option twice, with dashes and with underscores"))
    if found:
        return config, found
    choices = itertools.product(*axes.values()) if way == "grid" else zip(*axes.values(), strict=True)
    variants: dict[str, Any] = {}
    for choice in choices:
        picked = dict(zip(axes, choice, strict=True))
        variant = "-".join([name, *(f"{_plain(key.rsplit('.', 1)[-1])}-{_plain(value)}" for key, value in picked.items())])
        try:
            entry = kind.model_validate(_variant(entries[name], picked), context=context)
        except ValidationError as error:
            found += [_at_sweep(problem, (*loc, way), axes, picked, f"{room}.{variant}") for problem in from_pydantic(error, {})]
            continue
        refused = option_problems.of_entry(entry, config, (room, name))
        inside = [replace(problem, loc=problem.loc[2:]) for problem in refused]
        found += [_at_sweep(problem, (*loc, way), axes, picked, f"{room}.{variant}") for problem in inside]
        if variant in variants or (variant in entries and variant != name):
            found.append(Problem((*loc, way), f"two entries would have the same name, {room}.{variant}"))
        elif len(variant) > NAME_LENGTH:
            found.append(Problem((*loc, way), f"the name {variant} has more than {NAME_LENGTH} characters"))
        variants[variant] = entry
    if found:
        return config, found
    replaced: dict[str, Any] = {}
    for key, entry in entries.items():
        replaced.update(variants if key == name else {key: entry})
    update: dict[str, Any] = {room: replaced}
    if room == "workloads":
        update["deployments"] = dict(config.deployments)
        for key, deployment in config.deployments.items():
            if name in (named := deployment.workloads or ()):
                renamed = tuple(new for old in named for new in (variants if old == name else (old,)))
                update["deployments"][key] = deployment.model_copy(update={"workloads": renamed})
    return config.model_copy(update=update), []


def _bad_key(kind: type[Deployment] | type[Load], key: str, loc: Loc) -> Problem | None:
    head, _, tail = key.partition(".")
    if head == "variables" and looks_secret(tail):  # before its values become part of a name
        return Problem(loc, "looks like a secret, and a configuration must not hold secrets")
    nested = head in ("topology", "options", "variables", "client_options")
    if key == options_files.KEY:
        return Problem(loc, "cannot be swept: write one deployment for each file, or sweep `options.KEY`")
    if head not in kind.model_fields:
        return Problem(loc, "is an unknown key", tuple(kind.model_fields), given=head)
    text = f"needs a key inside it, `{head}.KEY`" if nested else f"`{head}` has no keys inside it"
    return Problem(loc, text) if nested != bool(tail) else None


def _path(key: str) -> tuple[str, ...]:
    """Return ``options.max_num_seqs`` as ``("options", "max-num-seqs")``."""
    head, _, tail = key.partition(".")
    return (head, kebab(tail) if head in ("options", "client_options") else tail) if tail else (head,)


def _variant(entry: Deployment | Workload, picked: dict[str, Any]) -> dict[str, Any]:
    # Without unset keys, so that the variant derives its own executor.
    data = entry.model_dump(exclude_unset=True)
    for key, value in picked.items():
        head, *inner = _path(key)
        # A swept key of the topology takes the place of `topology: auto`.
        before = data.get(head)
        data[head] = {**(before if isinstance(before, dict) else {}), inner[0]: value} if inner else value
    return data


def _at_sweep(problem: Problem, loc: Loc, axes: dict[str, Any], picked: dict[str, Any], variant: str) -> Problem:
    """Return the problem of a variant at the place of the swept value that causes it, or else of the sweep."""
    for key, value in picked.items():
        path = _path(key)
        if problem.loc[: len(path)] == path:
            return replace(problem, loc=(*loc, key, axes[key].index(value)))
    inner = ".".join(map(str, problem.loc))
    return Problem(loc, f"makes {variant}, in which {inner}: {problem.text}", problem.allowed)


def _plain(value: Any) -> str:
    """Return a value as part of a name: lower-case letters, digits, dots and dashes; a list's items joined."""
    if isinstance(value, list | tuple):
        return "-".join(map(_plain, value))
    text = "null" if value is None else str(value)
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.") or "empty"


def points(config: Config, start: str) -> tuple[LoadPoint, ...]:
    """Return the load points of one start of a deployment (``restarts.starts``) of an expanded configuration in the order they run.

    The trials of searches are not among them: they depend on results (``config/searches.py``).

    `order: grouped` is workload, load, repetition. `interleaved` is repetition, workload, load: a machine that becomes slower or faster
    during the run then changes all loads alike, and shows between the repetitions of each.
    """
    cpus, number = client_cpus(config, start), restart_of(start)
    names = [name for name in workload_names(config, start) if not config.workloads[name].searched]
    every = (point for name in names for point in workload_points(name, config.workloads[name], cpus))
    found = [point.model_copy(update={"restart": number}) for point in every if measures(config, start, point.repetition)]
    return tuple(sorted(found, key=lambda point: point.repetition) if config.order == "interleaved" else found)


def workload_names(config: Config, start: str) -> tuple[str, ...]:
    """Return the workloads of a start of a deployment in the order they run."""
    return deployment_of(config, start).workloads or tuple(config.workloads)


def client_cpus(config: Config, start: str) -> int | None:
    """Return the CPUs of the client's node; None if they are not known."""
    cluster = config.cluster
    # The cluster file states nothing about a client's own node of another kind.
    other_node = deployment_of(config, start).topology.client == "own" and cluster is not None and cluster.other_clients
    return cluster.cpus_per_node if cluster and not other_node else None


def _client_processes(workload: Workload, requests: int, concurrency: int | None, cpus: int | None) -> int:
    """Return the number of processes that share the load of one point. ``cpus``: of the client's node; None if unknown."""
    if workload.clients != "auto":
        return workload.clients
    wanted = min(math.ceil((concurrency or 1) / STREAMS_PER_CLIENT), requests, MAX_CLIENTS)
    return wanted if cpus is None else max(1, min(wanted, cpus // 2))


def workload_points(name: str, workload: Workload, cpus: int | None) -> list[LoadPoint]:
    """Return the load points of a workload without a search. ``cpus``: of the client's node; None if unknown."""
    rates, limits = workload.rates or (None,), workload.concurrencies or (None,)
    loads = [(f"q{label(rate)}" if rate else f"c{limit}", limit, rate) for rate in rates for limit in limits]
    counts, prompts, found = workload.requests_of(len(loads)), workload.prompts, []
    for (load, concurrency, rate), requests in zip(loads, counts, strict=True):
        warmups = min(requests, WARMUPS_PER_SLOT * concurrency if concurrency else WARMUPS_WITHOUT_CONCURRENCY)
        for repetition in range(1, workload.repetitions + 1):
            point = LoadPoint(
                name=f"{name}-{load}-r{repetition}",
                workload=name,
                prompts=prompts,
                concurrency=concurrency,
                request_rate=rate,
                repetition=repetition,
                seed=workload.seed,
                requests=requests,
                warmups=warmups if workload.warmups == "auto" else workload.warmups,
                warmup_tokens=min(WARMUP_TOKENS, prompts.output_tokens),
                client_options=workload.client_options,
                clients=_client_processes(workload, requests, concurrency, cpus),
                ask=workload.ask,
                api=workload.api,
                ramp_up_s=workload.ramp_up,
                sending_s=None if rate else workload.duration,
            )
            found.append(point.model_copy(update={"seed": _seed(point, load, workload)}))
    return found


def _seed(point: LoadPoint, load: str, workload: Workload) -> int:
    """Return a seed of 31 bits, a hash of everything that distinguishes the point from others.

    Two points with one seed would send the same prompts, and the second would find them in the server's prefix cache. Names are not hashed:
    renaming a workload changes nothing that is measured.
    """
    client = [point.warmups, point.client_options, workload.concurrencies if workload.rates else None]
    parts = [workload.seed, *point.prompts.key_part().values(), point.requests, client, load, point.repetition]
    # Defaults are left out, so seeds and ledger keys of measurements made before these keys existed stay the same.
    parts += [{"clients": point.clients}] if point.clients > 1 else []
    parts += [{"ask": point.ask}] if point.ask != "endpoint" else []
    parts += [{"api": point.api}] if point.api != "completions" else []
    parts += [{name: value} for name in ("ramp_up_s", "sending_s") if (value := getattr(point, name)) is not None]
    digest = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


def ask_without_router(config: Config) -> list[Problem]:
    """Return the workloads of an expanded configuration with `ask: replica` for a deployment without a router."""
    found = []
    for name, deployment in config.deployments.items():
        for workload in deployment.workloads or config.workloads if not deployment.topology.routed else ():
            if config.workloads[workload].ask == "replica":
                text = (
                    f"sends requests past the router, and deployments.{name} has no router; give it other `workloads`, "
                    "`topology.replicas` above 1, or `topology.balancing: router` with `data_parallel` above 1"
                )
                found.append(Problem(("workloads", workload, "ask"), text))
    return found


def too_little_time(config: Config) -> list[Problem]:
    """Return the workloads of an expanded configuration whose ``duration`` does not fit into the time of a load point."""
    limits = {f"`timeouts.point` stops a load point after {config.timeouts.point:g} s": config.timeouts.point}
    if config.cluster:
        minutes = config.cluster.minutes_per_point
        limits[f"the cluster file plans {minutes} minutes for a load point (`minutes_per_point`)"] = 60.0 * minutes
    return [
        Problem(("workloads", name, "duration"), f"is {workload.duration:g} s, and {what}; raise that limit")
        for name, workload in config.workloads.items()
        for what, seconds in limits.items()
        if workload.duration and workload.duration >= seconds
    ]
