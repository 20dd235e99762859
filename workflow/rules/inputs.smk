"""Input and parameter functions of the rules. Each returns paths or parts of the validated configuration."""

import os

from servemark.config import asked_checks, paths, restarts, searches
from servemark.config.workload import StagedWorkload
from servemark.environments import lockfiles, own_lock
from servemark.measurement import accuracy, contents, slo
from servemark.records import StagedPrompts
from servemark.records.restarts import configured
from servemark.variables import passed_on


def environment_of(wildcards):
    return f"<run>/environments/{configured_deployment(wildcards).environment}/environment.json"


def environment_check_of(wildcards):
    return f"<run>/environments/{configured_deployment(wildcards).environment}/check.json"


def manifest_of(wildcards):
    return f"<run>/models/{configured_deployment(wildcards).model}/manifest.json"


def datasets_by_name(*, shared=False, recorded=False):
    """Return the source of every dataset that a deployment's prompts come from, by its name.

    shared: only with `share_prompts`; recorded: only with `output_tokens: recorded`.
    """
    workloads = [experiment.config.workloads[name] for name in paths.used_workloads(experiment.config)]
    return {
        one.dataset.name: one.dataset
        for one in workloads
        if isinstance(one, StagedWorkload) and (one.share_prompts or not shared) and (one.output_tokens == "recorded" or not recorded)
    }


def dataset_file(wildcards):
    """Return the user's file; nothing for a dataset of the hub."""
    source = datasets_by_name()[wildcards.dataset]
    return [] if source.kind == "hf" else source.path


def datasets_of(wildcards):
    """Return the records of the datasets of a deployment's load points and searches."""
    loads = [*experiment.points[wildcards.deployment], *searches.ends(experiment.config, wildcards.deployment)]
    names = {load.prompts.name for load in loads if isinstance(load.prompts, StagedPrompts)}
    return [f"<run>/datasets/{name}/dataset.json" for name in sorted(names)]


def configured_deployment(wildcards):
    """Return the deployment as configured."""
    return restarts.deployment_of(experiment.config, wildcards.deployment)


def per_deployment(pattern):
    """Return one path for every deployment of the experiment."""
    return [pattern.format(deployment=deployment) for deployment in experiment.points]


def per_name(kind, pattern):
    """Return one path for every environment or model that a deployment uses."""
    used = {getattr(deployment, kind) for deployment in experiment.config.deployments.values()}
    return [pattern.format(name=name) for name in sorted(used)]


def point_paths(deployment):
    """Return the records of a deployment's load points, in the order of their measurement."""
    return [f"<run>/deployments/{deployment}/points/{point.name}.json" for point in experiment.points[deployment]]


def search_paths(deployment):
    """Return the records of a deployment's searches, in their order."""
    return [f"<run>/deployments/{deployment}/searches/{one.workload}/search.json" for one in experiment.searches[deployment]]


def check_paths(deployment):
    """Return the records of a deployment's accuracy checks, in their order."""
    return [f"<run>/deployments/{deployment}/checks/{name}/accuracy.json" for name in checks_by_name(deployment)]


def checks_by_name(deployment):
    return restarts.deployment_of(experiment.config, deployment).checks


def checked_deployments():
    """Return the deployments with accuracy checks."""
    return [deployment for deployment in experiment.points if checks_by_name(deployment)]


def lm_eval_tasks():
    """Return the names of the tasks of lm-eval that accuracy checks use."""
    every = (deployment.checks.items() for deployment in experiment.config.deployments.values())
    return sorted({name for checks in every for name, check in checks if check.task is None})


def environment_parameters(wildcards):
    # Where the wheels are does not change the environment, because their hashes are locked.
    return experiment.config.environments[wildcards.environment].model_dump(mode="json", exclude={"wheels"})


def environment_sources(wildcards):
    """Return the lock files of an environment; a change rebuilds it."""
    asked = experiment.config.environments[wildcards.environment].lock
    if asked and own_lock.is_path(asked):
        return [asked]
    known = lockfiles.table(Path("envs"))
    return [str(path) for lock in known.values() if asked in (lock.name, lockfiles.AUTO) for path in lock.sources()]


def needs_ray(wildcards):
    """Return whether a deployment with this environment needs Ray."""
    return any(
        deployment.environment == wildcards.environment and deployment.topology.traits.needs_ray
        for deployment in experiment.config.deployments.values()
    )


def needs_router(wildcards):
    """Return whether a deployment with this environment needs the router."""
    return any(
        deployment.environment == wildcards.environment and deployment.topology.routed
        for deployment in experiment.config.deployments.values()
    )


def model_source(wildcards):
    return experiment.config.models[wildcards.model].source


def load_format(wildcards):
    return experiment.config.models[wildcards.model].load_format


def deployment_parameters(wildcards):
    """Return the parts of the configuration and of the inherited environment variables that decide a deployment's plan."""
    deployment = configured_deployment(wildcards)
    cluster = experiment.config.cluster
    given = (cluster.variables if cluster else {}) | deployment.variables
    image = experiment.config.environments[deployment.environment].container
    inherited = passed_on.deciding(passed_on.into_image(os.environ, ()) if image else os.environ, deployment.topology.record(), given)
    # Only a run may write: a dry run also comes here.
    named = contents.digests(deployment.options, inherited | given, experiment.config.cache, keep=experiment.executes)
    choice = experiment.choices.get(configured(wildcards.deployment))
    # Without a choice no further keys: changed parameters would plan the deployments of every finished run again.
    automatic = {"choice": choice.model_dump(mode="json"), "ledger": str(experiment.config.ledger_folder)} if choice else {}
    checks = asked_checks.asked(experiment.config, wildcards.deployment)
    automatic |= {"checks": [one.model_dump(mode="json") for one in checks]} if checks else {}
    return automatic | {
        "deployment": deployment.model_dump(mode="json", exclude={"port", "compile_cache", "options_file", "checks"}),
        "points": [point.model_dump(mode="json") for point in experiment.points[wildcards.deployment]],
        "searches": [one.model_dump(mode="json") for one in experiment.searches[wildcards.deployment]],
        "ends": [point.model_dump(mode="json") for point in searches.ends(experiment.config, wildcards.deployment)],
        "trust_remote_code": experiment.config.models[deployment.model].trust_remote_code,
        "cluster": cluster and cluster.model_dump(mode="json", include={"scheduler", "variables", "modules", "interface"}),
        "inherited": inherited,
        "contents": named,
        "served_name": experiment.config.served_name(deployment.model),
    }


def port_of(wildcards):
    """Return the configured port of the deployment, or None."""
    port = configured_deployment(wildcards).port
    return None if port == "auto" else port


def predecessor(wildcards):
    """Return the record of the previous load point: load points of a deployment run one after another."""
    before = experiment.before[wildcards.deployment, wildcards.point]
    return f"<run>/deployments/{wildcards.deployment}/points/{before}.json" if before else []


def predecessor_of_search(wildcards):
    """Return the record of the previous search, or of the last load point: searches come last."""
    before = [one.workload for one in experiment.searches[wildcards.deployment]].index(wildcards.workload)
    return [*point_paths(wildcards.deployment)[-1:], *search_paths(wildcards.deployment)[:before]][-1:]


def predecessor_of_check(wildcards):
    """Return the record of the previous check, or of the last search or load point: checks come last."""
    name = wildcards.deployment
    before = list(checks_by_name(name)).index(wildcards.check)
    return [*point_paths(name)[-1:], *search_paths(name)[-1:], *check_paths(name)[:before]][-1:]


def checks_of(wildcards):
    return check_paths(wildcards.deployment)


def searches_of(wildcards):
    return search_paths(wildcards.deployment)


def points_of(wildcards):
    return point_paths(wildcards.deployment)


def results_of_the_run(wildcards):
    """Return the result files for the user."""
    archive = f"<run>/archive/{experiment.config.run}.tar.zst"
    return ["<run>/measurements.csv", "<run>/measurements.parquet", "<run>/report.html", archive, f"{archive}.sha256"]


def records_of_the_run(wildcards):
    """Return every record and raw result. As targets, missing ones are made again; as inputs, Snakemake ignores them if outputs exist."""
    points = [path for deployment in experiment.points for path in point_paths(deployment)]
    trials = [path for deployment in experiment.points for path in search_paths(deployment)]
    checks = [path for deployment in experiment.points for path in check_paths(deployment)]
    return [
        "<run>/hardware.json",
        "<run>/plans.json",
        *per_name("environment", "<run>/environments/{name}/environment.json"),
        *per_name("environment", "<run>/environments/{name}/check.json"),
        *per_name("model", "<run>/models/{name}/manifest.json"),
        *(f"<run>/datasets/{name}/dataset.json" for name in sorted(datasets_by_name())),
        *per_deployment("<run>/deployments/{deployment}/plan.json"),
        *per_deployment("<run>/deployments/{deployment}/fabric.json"),
        *per_deployment("<run>/deployments/{deployment}/startup.json"),
        *per_deployment("<run>/deployments/{deployment}/stopped.json"),
        *per_deployment("<run>/deployments/{deployment}/accounting.json"),
        *points,
        *trials,
        *checks,
        *(["<run>/accuracy.csv"] if checks else []),
        *[path.replace(".json", ".requests.json") for path in points],
    ]
