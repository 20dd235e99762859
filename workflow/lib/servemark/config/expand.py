"""Sweeps become variants, workloads become load points: pure functions of the configuration."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import re
from typing import Any

from pydantic import ValidationError

from servemark.config.field_types import MAX_CLIENTS, NAME_LENGTH, label
from servemark.config.limits import too_many
from servemark.config.model import Config, Deployment, Sweep
from servemark.config.problems import Loc, Problem, config_error, from_pydantic
from servemark.config.reserved import kebab
from servemark.config.workload import Load, Workload
from servemark.records import LoadPoint
from snakemake_executor_plugin_slurm_guarded.secret_names import looks_secret

# More variants than this are taken for a mistake: each one is a whole deployment or a whole set of load points.
MAX_VARIANTS = 1000
# Of the concurrency, for `clients: auto`. One process of vLLM's client keeps up with `client_chunks` (planning/advice.yaml).
STREAMS_A_CLIENT = 128
# A place's first warm-up meets a server that fills, its second one that goes on answering meanwhile: other shapes of steps, other kernels.
WARMUPS_A_PLACE = 2
# Where there is only a rate, nobody knows how many will be in flight.
WARMUPS_OF_A_RATE = 32
# Of a warm-up's answer: what is to be compiled is met in reading prompts and in the first steps of answers.
WARMUP_TOKENS = 32


def expand(config: Config) -> Config:
    """Return the configuration with every sweep replaced by its variants; itself when there is none.

    Variants are named NAME-KEY-VALUE with the last part of the key, take the place of the original in order, and deployments that name a
    swept workload get all its variants. A variant that is not valid, or a name that stands twice, is a ConfigError.
    """
    expanded, found = try_expand(config)
    if found:
        raise config_error(found, config.model_dump(mode="json", exclude_unset=True), ())
    return expanded


def try_expand(config: Config) -> tuple[Config, list[Problem]]:
    """Like :func:`expand`, but hands the problems back, at places in ``sweeps``."""
    found = too_many(config)
    if found or not config.sweeps:
        return config, found
    swept = [sweep.over for sweep in config.sweeps]
    if twice := [index for index, over in enumerate(swept) if over in swept[:index]]:
        return config, [Problem(("sweeps", i, "over"), f"{swept[i]} is swept already; put all its keys into one sweep") for i in twice]
    # Deployments first: their references are checked against the workloads as written, then follow the variants.
    order = sorted(enumerate(config.sweeps), key=lambda item: item[1].over.split(".", 1)[0])
    for index, sweep in order:
        config, more = _apply(config, sweep, ("sweeps", index))
        found += more
        if problem := too_many(config):
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
        return config, [Problem((*loc, way), f"makes {total} variants; at most {MAX_VARIANTS} are taken")]
    found = [fault for key in axes if (fault := _bad_key(kind, key, (*loc, way, key)))]
    if len({_path(key) for key in axes}) < len(axes):
        found.append(Problem((*loc, way), "holds the same option twice, with dashes and with underscores"))
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
        update["deployments"] = {key: _follow(deployment, name, tuple(variants)) for key, deployment in config.deployments.items()}
    return config.model_copy(update=update), []


def _bad_key(kind: type[Deployment] | type[Load], key: str, loc: Loc) -> Problem | None:
    head, _, tail = key.partition(".")
    if head == "variables" and looks_secret(tail):  # before its values become part of a name
        return Problem(loc, "looks like a secret, and secrets never live in the configuration")
    nested = head in ("topology", "options", "variables", "client_options")
    if head not in kind.model_fields:
        return Problem(loc, "is not a key of it", tuple(kind.model_fields), given=head)
    text = f"takes a key inside it, `{head}.KEY`" if nested else f"`{head}` has no keys inside it"
    return Problem(loc, text) if nested != bool(tail) else None


def _path(key: str) -> tuple[str, ...]:
    """``options.max_num_seqs`` -> ``("options", "max-num-seqs")``."""
    head, _, tail = key.partition(".")
    return (head, kebab(tail) if head in ("options", "client_options") else tail) if tail else (head,)


def _variant(entry: Deployment | Workload, picked: dict[str, Any]) -> dict[str, Any]:
    # Unset keys stay out, so that what is derived (the executor) is derived anew.
    data = entry.model_dump(exclude_unset=True)
    for key, value in picked.items():
        head, *inner = _path(key)
        data[head] = {**data.get(head, {}), inner[0]: value} if inner else value
    return data


def _at_sweep(problem: Problem, loc: Loc, axes: dict[str, Any], picked: dict[str, Any], variant: str) -> Problem:
    """Return the problem of a variant, placed at the value of the sweep that brought it, where there is one."""
    for key, value in picked.items():
        path = _path(key)
        if problem.loc[: len(path)] == path:
            place = (*loc, key, axes[key].index(value))
            return Problem(place, problem.text, problem.allowed, problem.hide, problem.given)
    inner = ".".join(map(str, problem.loc))
    return Problem(loc, f"makes {variant}, and there {inner}: {problem.text}", problem.allowed)


def _plain(value: Any) -> str:
    """Return a value as part of a name: lower-case letters, digits, dots and dashes; a list's items joined."""
    if isinstance(value, list | tuple):
        return "-".join(map(_plain, value))
    text = "null" if value is None else str(value)
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.") or "empty"


def _follow(deployment: Deployment, name: str, variants: tuple[str, ...]) -> Deployment:
    if name not in (deployment.workloads or ()):
        return deployment
    renamed = [new for old in deployment.workloads or () for new in (variants if old == name else (old,))]
    return deployment.model_copy(update={"workloads": tuple(renamed)})


def points(config: Config, deployment_name: str) -> tuple[LoadPoint, ...]:
    """Return the load points of one deployment of an expanded configuration in the order they run: workload, load, repetition."""
    deployment = config.deployments[deployment_name]
    cpus = _client_cpus(config, deployment)
    names = deployment.workloads or tuple(config.workloads)
    return tuple(point for name in names for point in _workload_points(name, config.workloads[name], cpus))


def _client_cpus(config: Config, deployment: Deployment) -> int | None:
    """Return CPUs of the client's node, where the cluster file tells."""
    cluster = config.cluster
    if cluster is None or (deployment.topology.client == "own" and (cluster.client_constraint or cluster.client_partition)):
        return None
    return cluster.cpus_per_node


def client_processes(workload: Workload, requests: int, concurrency: int | None, cpus: int | None) -> int:
    """Return how many processes share the load of one point. ``cpus``: of the client's node; None: not known."""
    if workload.clients != "auto":
        return workload.clients
    wanted = min(math.ceil((concurrency or 1) / STREAMS_A_CLIENT), requests, MAX_CLIENTS)
    return wanted if cpus is None else max(1, min(wanted, cpus // 2))


def warmups(workload: Workload, requests: int, concurrency: int | None) -> int:
    """Return how many warm-ups one point has. ``requests``, ``concurrency``: of the point."""
    if workload.warmups != "auto":
        return workload.warmups
    return min(requests, WARMUPS_A_PLACE * concurrency if concurrency else WARMUPS_OF_A_RATE)


def _workload_points(name: str, workload: Workload, cpus: int | None) -> list[LoadPoint]:
    rates, limits = workload.request_rate or (None,), workload.concurrency or (None,)
    loads = [(f"q{label(rate)}" if rate else f"c{limit}", limit, rate) for rate in rates for limit in limits]
    counts = workload.requests if len(workload.requests) > 1 else workload.requests * len(loads)
    prompts = workload.prompts
    return [
        _seeded(
            LoadPoint(
                name=f"{name}-{load}-r{repetition}",
                workload=name,
                prompts=prompts,
                concurrency=concurrency,
                request_rate=rate,
                repetition=repetition,
                seed=workload.seed,
                requests=count,
                warmups=warmups(workload, count, concurrency),
                warmup_tokens=min(WARMUP_TOKENS, prompts.output_tokens),
                client_options=workload.client_options,
                clients=client_processes(workload, count, concurrency, cpus),
                ask=workload.ask,
            ),
            load,
            workload,
        )
        for (load, concurrency, rate), count in zip(loads, counts, strict=True)
        for repetition in range(1, workload.repetitions + 1)
    ]


def _seeded(point: LoadPoint, load: str, workload: Workload) -> LoadPoint:
    """Return the point with a seed of 31 bits of its own.

    Two points with one seed would send the same prompts, and the second would find them in the server's prefix cache. So everything that
    makes a point another one is hashed. Names are not: renaming a workload changes nothing that is measured.
    """
    client = [point.warmups, point.client_options, workload.concurrency if workload.request_rate else None]
    parts = [workload.seed, *point.prompts.key_part().values(), point.requests, client, load, point.repetition]
    # Left out where they are the default: points that were measured before there was a choice keep their seed, and so their ledger key.
    parts += [{"clients": point.clients}] if point.clients > 1 else []
    parts += [{"ask": point.ask}] if point.ask != "endpoint" else []
    digest = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).digest()
    return point.model_copy(update={"seed": int.from_bytes(digest[:4], "big") >> 1})


def nobody_to_ask(config: Config) -> list[Problem]:
    """Return workloads of an expanded configuration that ask one replica of a deployment that has no router."""
    found = []
    for name, deployment in config.deployments.items():
        for workload in deployment.workloads or config.workloads if not deployment.topology.routed else ():
            if config.workloads[workload].ask == "replica":
                text = (
                    f"asks past the router, and deployments.{name} has one server and no router; give it other `workloads`, "
                    "`topology.replicas` above 1, or `topology.balancing: router` with `data_parallel` above 1"
                )
                found.append(Problem(("workloads", workload, "ask"), text))
    return found
