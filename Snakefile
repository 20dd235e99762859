"""servemark: from wheels and weights to a measured, reported and archived vLLM deployment."""

import re

from snakemake.utils import min_version

min_version("9.27")


include: "workflow/rules/common.smk"


# A user's --configfile replaces the default configuration. Snakemake would merge the two and also run the demo's deployments.
if not workflow.overwrite_configfiles:
    refuse_unreadable_configuration("config/config.yaml")

    configfile: "config/config.yaml"


experiment = load_experiment(config, workflow)


report: "workflow/report/workflow.rst"


pathvars:
    run=f"results/{experiment.config.run}",
    logs=f"results/{experiment.config.run}/logs",
    benchmarks=f"results/{experiment.config.run}/benchmarks",


wildcard_constraints:
    check=CHECK,
    dataset=NAME,
    deployment=START,
    environment=NAME,
    model=NAME,
    format="|".join(map(re.escape, EXPORT_NAMES)),
    point=NAME,
    workload=NAME,


include: "workflow/rules/inputs.smk"
include: "workflow/rules/resources.smk"
include: "workflow/rules/environment.smk"
include: "workflow/rules/weights.smk"
include: "workflow/rules/datasets.smk"
include: "workflow/rules/plan.smk"
include: "workflow/rules/deployment.smk"
include: "workflow/rules/results.smk"
include: "workflow/rules/serving.smk"


rule all:
    """Measure every deployment, write the report and seal the archive."""
    default_target: True
    input:
        check="<run>/check.json",
        results=results_of_the_run,
        records=records_of_the_run,
        published="<run>/published.json" if experiment.config.publish else [],
    localrule: True


onstart:
    main_process.begin(experiment)


onsuccess:
    main_process.end(experiment, success=True)


onerror:
    main_process.end(experiment, success=False)
