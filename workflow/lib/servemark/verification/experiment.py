"""Check that plans and load points are those that the configuration in ``config.json`` asks for."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from servemark.config.cuda_graphs import WORKLOAD
from servemark.config.expand import expand, points
from servemark.config.model import Config, Deployment
from servemark.config.restarts import deployment_of, starts
from servemark.config.searches import ends, searches, trial
from servemark.errors import ServemarkError
from servemark.launch import random_weights
from servemark.measurement import key
from servemark.measurement.search import MOST_OF_ONE_LOAD
from servemark.measurement.thresholds import Verdict
from servemark.planning import cuda_graphs, software
from servemark.records import LoadPoint, Plan, Search, StagedPrompts
from servemark.report.gather import RunRecords
from servemark.verification.facts import Finding, NotChecked, Stated, differ, guarded

CONFIG = "config.json"
_DERIVED = {"warmups": ("warmups", "seed"), "clients": ("clients", "seed")}
"""Keys of a workload that may be `auto` -> fields of a load point that servemark then derives, by rules that depend on its version."""


def check(found: RunRecords, *, older: bool) -> Iterator[Finding]:
    """Yield every contradiction between the configuration and plans or measurements.

    Args:
        older: another version sealed the archive. It may derive numbers that the configuration leaves open in another way.
    """
    try:
        config = read(found.config)
    except (ServemarkError, ValidationError, TypeError, AttributeError, ValueError) as error:
        text = " ".join(str(error).split())[:200]
        yield NotChecked(f"{CONFIG} (not a configuration of this version: {text})") if older else f"{CONFIG} is no configuration: {text}"
        return
    known = set(starts(config))
    for name, plan in found.plans.items():
        if name not in known:
            yield f"{name}: deployments/{name}/plan.json is there, but {CONFIG} has no such deployment."
            continue
        deployment = deployment_of(config, name)
        what = f"deployments/{name}/plan.json"
        yield from guarded(what, _deployment(found, config, plan, deployment, older))
        yield from guarded(what, _points(config, plan, found.searches.get(name, ()), older))


def read(data: Mapping[str, Any]) -> Config:
    """Return the configuration of a run with its sweeps expanded, without looking at this machine.

    Sources of models and the caches are places on the machine of the run, so they are left out.

    Raises:
        ServemarkError, ValueError, TypeError, AttributeError: it is not a configuration of this version.
    """
    models = {name: {**model, "source": "builtin:tiny-dense"} for name, model in data["models"].items()} if "models" in data else {}
    cluster = {**data["cluster"], "cache": None} if data.get("cluster") else None
    left = {name: value for name, value in data.items() if name not in ("cache", "hub_cache")}
    return expand(Config.model_validate({**left, "models": models, "cluster": cluster}))


def loosened(config: Mapping[str, Any]) -> list[str]:
    """Return the thresholds of a run that are not the defaults, in words; an empty list if they cannot be read."""
    try:
        thresholds, usual = Verdict.model_validate(config.get("verdict", {})), Verdict()
    except ValidationError:
        return []
    names = [name for name in Verdict.model_fields if getattr(thresholds, name) != getattr(usual, name)]
    return [f"{name} {getattr(thresholds, name):g} (default {getattr(usual, name):g})" for name in names]


def _deployment(found: RunRecords, config: Config, plan: Plan, asked: Deployment, older: bool) -> Iterator[str]:
    name, file = plan.deployment, f"deployments/{plan.deployment}/plan.json"
    site, manifest = config.cluster, found.manifests.get(plan.model)
    own = {
        "model": asked.model,
        "environment": asked.environment,
        "served_name": config.served_name(asked.model),
        "topology": asked.topology.record().model_dump(),
        "modules": site.modules if site else (),
        "variables": _variables(found, plan, (dict(site.variables) if site else {}) | asked.variables, older),
        "options": key.normalise_options(_options(found, config, plan, asked, older)),
    }
    stated = plan.model_dump() | {"options": key.normalise_options(plan.options)}
    yield from differ(name, Stated(file, {part: stated[part] for part in own}), Stated(CONFIG, own))
    if manifest:
        given, model = found.config["models"][plan.model], f"models/{plan.model}/manifest.json"
        asked_for = given.get("load_format", "auto")
        yield from differ(f"model {plan.model}: load_format", Stated(model, manifest.load_format), Stated(CONFIG, asked_for))
        if str(given["source"]).startswith(("builtin:", "hf:")):
            source = Stated(model, manifest.source.partition("@")[0].split()[0])
            yield from differ(f"model {plan.model}: source", source, Stated(CONFIG, given["source"].partition("@")[0]))
    if made := found.environments.get(plan.environment):
        given = found.config["environments"][plan.environment]
        origin = next((key for key in ("lock", "container") if given.get(key)), "prefix")
        wanted = {"lock": given.get("lock"), "origin": origin}
        recorded = {"lock": "auto" if given.get("lock") == "auto" and made.lock else made.lock, "origin": made.origin}
        place = f"environments/{plan.environment}/environment.json"
        yield from differ(f"environment {plan.environment}", Stated(place, recorded), Stated(CONFIG, wanted))


def _variables(found: RunRecords, plan: Plan, given: dict[str, str], older: bool) -> dict[str, str]:
    """Return the variables that a plan must have: the configured ones, and those that turn off parts of FlashInfer without kernels."""
    check = found.checks.get(plan.environment)
    if older:
        # Another version may turn off other parts.
        return {name: value for name, value in plan.variables.items() if name not in given} | given
    cuda = check is not None and found.machine.accelerator == "cuda"
    return given | (software.turned_off(check, plan.topology, given)[0] if check is not None and cuda else {})


def _options(found: RunRecords, config: Config, plan: Plan, asked: Deployment, older: bool) -> dict[str, Any]:
    """Return the options that a plan must have: the configured ones, with numbers for `workload`, and those of the model."""
    options = dict(asked.options)
    if older:
        # Another version may choose other sizes for the word `workload`.
        words = [name for name, value in options.items() if value == WORKLOAD]
        options = {name: plan.options.get(name) if name in words else value for name, value in options.items()}
        options = {name: value for name, value in options.items() if name not in words or name in plan.options}
    else:
        wanted = points(config, plan.deployment) + ends(config, plan.deployment)
        options, _ = cuda_graphs.resolve(options, plan.topology, wanted, found.machine)
    model = config.models[asked.model]
    options |= {"trust-remote-code": True} if model.trust_remote_code else {}
    if model.load_format == "dummy":
        stated = str(plan.options.get("load-format"))
        known = older and stated.startswith(random_weights.LOAD_FORMAT.rpartition("_")[0])
        options["load-format"] = stated if known else random_weights.LOAD_FORMAT
    return options


def _points(config: Config, plan: Plan, ended: Sequence[Search], older: bool) -> Iterator[str]:
    name, file = plan.deployment, f"deployments/{plan.deployment}/plan.json"
    yield from differ(
        f"{name}: searches", Stated(file, tuple(one.unplanned() for one in plan.searches)), Stated(CONFIG, searches(config, name))
    )
    trials = [
        trial(config, name, search.asked.workload, one.value, one.point.load.repetition)
        for search in ended
        for one in search.trials
        if config.workloads[search.asked.workload].searched and 1 <= one.point.load.repetition <= MOST_OF_ONE_LOAD
    ]
    asked, planned = ({load.name: load for load in loads} for loads in ([*points(config, name), *trials], plan.loads))
    for point in sorted(asked.keys() - planned.keys()):
        yield f"{name} {point}: {CONFIG} asks for this load point, {file} does not plan it."
    for point in sorted(planned.keys() - asked.keys()):
        yield f"{name} {point}: {file} plans this load point, {CONFIG} does not ask for it."
    if len(plan.points) != len(planned):
        yield f"{name}: {file} plans a load point twice."
    for point in sorted(asked.keys() & planned.keys()):
        left = _left_open(config, planned[point]) if older else frozenset()
        stated, own = ({k: v for k, v in load.model_dump().items() if k not in left} for load in (_as_asked(planned[point]), asked[point]))
        yield from differ(f"{name} {point}", Stated(file, stated), Stated(CONFIG, own))


def _as_asked(load: LoadPoint) -> LoadPoint:
    """Return a planned load point as the configuration asks for it: without what planning reads from a staged dataset and the model."""
    prompts = load.prompts.unplanned() if isinstance(load.prompts, StagedPrompts) else load.prompts
    return load.model_copy(update={"prompts": prompts, "template_tokens": 0})


def _left_open(config: Config, load: LoadPoint) -> frozenset[str]:
    """Return the fields of a load point that the configuration leaves to servemark."""
    workload = config.workloads[load.workload]
    return frozenset({"warmup_tokens"}.union(*(fields for name, fields in _DERIVED.items() if getattr(workload, name) == "auto")))
