"""Loads the experiment and gives the rules their input and parameter functions."""

import os
import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(workflow.basedir) / "workflow" / "lib"))

from servemark.config import command_line
from servemark.environments import lockfiles
from servemark.run import code_digest, main_process, scheduled
from servemark.run import serve as serving
from servemark.variables import inherited
from snakemake_executor_plugin_slurm_guarded import quoting

# Snakemake does not need this folder. A killed run would leave it in /tmp.
shutil.rmtree(workflow.snakemake_tmp_dir, ignore_errors=True)

# On one machine all jobs run here, and nothing is asked of a scheduler.
SCHEDULED = scheduled.is_scheduled(is_main=workflow.is_main_process, jobs=workflow.resource_settings.nodes)


def load_experiment(config, workflow):
    """The validated configuration, sweeps applied; in the main process this also claims the checkout."""
    sources = workflow.overwrite_configfiles or ["config/config.yaml"]
    return main_process.load(
        config, sources, is_main=workflow.is_main_process, scheduled=SCHEDULED, prepare=quoting.quote
    )


def refuse_unreadable_configuration(path):
    """End with a message where Snakemake would show a traceback, or never end."""
    command_line.refuse_unreadable([Path(path)])


def settings():
    """The resolved configuration. The main process writes it before a real run; a dry run in a fresh checkout has none."""
    return str(experiment.settings) if experiment.settings.exists() else []


def code_of(rule):
    """A digest of the files that decide what a rule's script writes. The rule runs again when one of them changes."""
    workflow_folder = Path(workflow.basedir) / "workflow"
    return code_digest.digest(workflow_folder / "scripts" / f"{rule}.py", workflow_folder / "lib")


def runs_here(where):
    """Whether a stage that the cluster file puts ``where`` (login or job) runs beside the main process."""
    return experiment.config.cluster is None or where(experiment.config.cluster) == "login"


def of_a_small_job(rule):
    """Resources of a rule's short job, which looks at a node or at an environment."""
    return scheduled.small_request(experiment.config, rule).resources() if SCHEDULED else {}


def of_an_allocation():
    """Resources of a deployment's job. Given by one rule of the group, since Snakemake adds them up or asks that they be equal."""

    def one(key, default):
        def resource(wildcards):
            plan = experiment.folder / "deployments" / wildcards.deployment / "plan.json"
            lacking = scheduled.lacking(experiment.config, plan)
            request = scheduled.deployment_request(experiment.config, wildcards.deployment, lacking)
            return request.resources().get(key, default)

        return resource

    return {key: one(key, default) for key, default in scheduled.RESOURCES.items()} if SCHEDULED else {}


def of_an_endpoint():
    """Resources of the job that holds an endpoint: those of its measurement, for another time."""

    def runtime(wildcards):
        # So many points take longer than any endpoint is held.
        many = scheduled.deployment_request(experiment.config, wildcards.deployment, serving.LONGEST_MIN)
        return min(serving.LONGEST_MIN, many.minutes)

    return {**of_an_allocation(), "runtime": runtime} if SCHEDULED else {}


def point_names(deployment):
    return [point.name for point in experiment.points[deployment]]


def of_deployment(wildcards):
    """The deployment as configured."""
    return experiment.config.deployments[wildcards.deployment]


def deployment_parameters(wildcards):
    """Everything of the configuration, and of the shell, that decides a deployment's plan."""
    deployment = of_deployment(wildcards)
    cluster = experiment.config.cluster
    given = (cluster.variables if cluster else {}) | deployment.variables
    return {
        "deployment": deployment.model_dump(mode="json", exclude={"port", "compile_cache"}),
        "points": [point.model_dump(mode="json") for point in experiment.points[wildcards.deployment]],
        "trust_remote_code": experiment.config.models[deployment.model].trust_remote_code,
        "cluster": cluster
        and cluster.model_dump(mode="json", include={"scheduler", "variables", "modules", "interface"}),
        "inherited": inherited.deciding(os.environ, deployment.topology.record(), given),
    }


def environment_of(wildcards):
    return f"<run>/environments/{of_deployment(wildcards).environment}/environment.json"


def environment_check_of(wildcards):
    return f"<run>/environments/{of_deployment(wildcards).environment}/check.json"


def manifest_of(wildcards):
    return f"<run>/models/{of_deployment(wildcards).model}/manifest.json"


def port_of(wildcards):
    port = of_deployment(wildcards).port
    return None if port == "auto" else port


def environment_parameters(wildcards):
    return experiment.config.environments[wildcards.environment].model_dump(mode="json")


def environment_sources(wildcards):
    """The files that decide what is installed, so that a changed lock is built anew."""
    asked = experiment.config.environments[wildcards.environment].lock
    known = lockfiles.table(Path("envs"))
    return [str(path) for lock in known.values() if asked in (lock.name, lockfiles.AUTO) for path in lock.sources()]


def needs_ray(wildcards):
    """Whether a deployment asks this environment for Ray."""
    return any(
        deployment.environment == wildcards.environment and deployment.topology.executor == "ray"
        for deployment in experiment.config.deployments.values()
    )


def needs_router(wildcards):
    """Whether a deployment asks this environment for the router."""
    return any(
        deployment.environment == wildcards.environment and deployment.topology.record().routed
        for deployment in experiment.config.deployments.values()
    )


def model_source(wildcards):
    return experiment.config.models[wildcards.model].source


def load_format(wildcards):
    return experiment.config.models[wildcards.model].load_format


def predecessor(wildcards):
    """The point before this one: points of a deployment run one after the other."""
    before = experiment.before[wildcards.deployment, wildcards.point]
    return f"<run>/deployments/{wildcards.deployment}/points/{before}.json" if before else []


def points_of(wildcards):
    return [
        f"<run>/deployments/{wildcards.deployment}/points/{point}.json" for point in point_names(wildcards.deployment)
    ]


def all_points(wildcards):
    return [
        f"<run>/deployments/{deployment}/points/{point.name}.json"
        for deployment, chain in experiment.points.items()
        for point in chain
    ]


def of_every_deployment(pattern):
    """One path for every deployment of the experiment."""
    return [pattern.format(deployment=deployment) for deployment in experiment.points]


def every(kind, pattern):
    """One path for every environment or model that a deployment uses."""
    used = {getattr(deployment, kind) for deployment in experiment.config.deployments.values()}
    return [pattern.format(name=name) for name in sorted(used)]


def results_of_the_run(wildcards):
    """What a user takes away."""
    archive = f"<run>/archive/{experiment.config.run}.tar.zst"
    return ["<run>/measurements.csv", "<run>/measurements.parquet", "<run>/report.html", archive, f"{archive}.sha256"]


def records_of_the_run(wildcards):
    """Every record and raw result. Named as targets, because Snakemake does not make a lost file anew while what was made from it stands."""
    return [
        "<run>/hardware.json",
        "<run>/plans.json",
        *every("environment", "<run>/environments/{name}/environment.json"),
        *every("environment", "<run>/environments/{name}/check.json"),
        *every("model", "<run>/models/{name}/manifest.json"),
        *of_every_deployment("<run>/deployments/{deployment}/plan.json"),
        *of_every_deployment("<run>/deployments/{deployment}/fabric.json"),
        *of_every_deployment("<run>/deployments/{deployment}/startup.json"),
        *of_every_deployment("<run>/deployments/{deployment}/stopped.json"),
        *of_every_deployment("<run>/deployments/{deployment}/accounting.json"),
        *all_points(wildcards),
        *[path.replace(".json", ".requests.json") for path in all_points(wildcards)],
    ]
