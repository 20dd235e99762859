"""Plan a deployment, or refuse one that cannot be served."""

from typing import TYPE_CHECKING

from servemark.planning import prompts
from servemark.planning.plan_deployment import DeploymentSpec, plan
from servemark.records import Dataset, EnvironmentCheck, Hardware, Manifest
from servemark.run.stage import stage

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

name = snakemake.wildcards.deployment
with stage("plan_deployment", name, snakemake.log[0]) as here:
    spec, manifest = DeploymentSpec.model_validate(snakemake.params.spec), Manifest.read(snakemake.input.manifest)
    datasets = {dataset.name: dataset for dataset in map(Dataset.read, snakemake.input.datasets)}
    points, ends = (prompts.resolved(loads, datasets, manifest, spec.deployment.options) for loads in (spec.points, spec.ends))
    found = {
        "points": points,
        "ends": ends,
        "searches": prompts.of_trials(spec.searches, ends),
        "longest_rows": prompts.longest_rows(points + ends, datasets, manifest, spec.deployment.options),
    }
    planned = plan(
        name,
        spec.model_copy(update=found),
        Hardware.read(snakemake.input.hardware),
        EnvironmentCheck.read(snakemake.input.check),
        manifest,
    )
    planned.write(snakemake.output.plan)
    trials = sum(search.trials for search in planned.searches)
    here.progress.say(
        f"{len(planned.points)} load points{f' and at most {trials} trials' if trials else ''}, {planned.topology.world_size} ranks"
    )
    for warning in planned.warnings:
        here.progress.say(f"warning: {warning}")
