"""Hardware and environments.

Input: the configuration and envs/*.lock. Output: hardware.json, and environment.json and check.json for every environment.
"""


rule probe_hardware:
    """Record the hardware of the machine that will run the model."""
    output:
        hardware="<run>/hardware.json",
    log:
        "<logs>/probe_hardware.log",
    benchmark:
        "<benchmarks>/probe_hardware.tsv"
    resources:
        **small_job_site("probe_hardware"),
        runtime=small_job_resource("probe_hardware", "runtime"),
        gres=small_job_resource("probe_hardware", "gres"),
        cpus_per_task=small_job_resource("probe_hardware", "cpus_per_task"),
        mem_mb=small_job_resource("probe_hardware", "mem_mb"),
        slurm_exclusive=small_job_resource("probe_hardware", "slurm_exclusive"),
    params:
        code=code_of("probe_hardware"),
        share=scheduled.share(experiment.config) if SCHEDULED else None,
    script:
        "../scripts/probe_hardware.py"


rule build_environment:
    """Build an environment with vLLM and Ray from a lock file, once for all runs, or use an existing prefix."""
    input:
        sources=environment_sources,
        hardware="<run>/hardware.json",
        settings=ancient(settings()),
    output:
        environment="<run>/environments/{environment}/environment.json",
    log:
        "<logs>/build_environment/{environment}.log",
    benchmark:
        "<benchmarks>/build_environment/{environment}.tsv"
    localrule: runs_on_login(experiment.config.cluster and experiment.config.cluster.build_on)
    resources:
        **small_job_site("build_environment"),
        runtime=small_job_resource("build_environment", "runtime"),
        gres=small_job_resource("build_environment", "gres"),
        cpus_per_task=small_job_resource("build_environment", "cpus_per_task"),
        mem_mb=small_job_resource("build_environment", "mem_mb"),
        slurm_exclusive=small_job_resource("build_environment", "slurm_exclusive"),
    params:
        code=code_of("build_environment"),
        environment=environment_parameters,
        modules=experiment.config.cluster.modules if experiment.config.cluster else (),
    script:
        "../scripts/build_environment.py"


rule build_accuracy_environment:
    """Build the environment of lm-eval from its lock file, once for all runs; only if a deployment has accuracy checks. Check that it has their tasks."""
    input:
        sources="envs/accuracy.lock",
        hardware="<run>/hardware.json",
        settings=ancient(settings()),
    output:
        environment="<run>/accuracy/environment.json",
    log:
        "<logs>/build_accuracy_environment.log",
    benchmark:
        "<benchmarks>/build_accuracy_environment.tsv"
    localrule: runs_on_login(experiment.config.cluster and experiment.config.cluster.build_on)
    resources:
        **small_job_site("build_environment"),
        runtime=small_job_resource("build_environment", "runtime"),
        gres=small_job_resource("build_environment", "gres"),
        cpus_per_task=small_job_resource("build_environment", "cpus_per_task"),
        mem_mb=small_job_resource("build_environment", "mem_mb"),
        slurm_exclusive=small_job_resource("build_environment", "slurm_exclusive"),
    params:
        code=code_of("build_accuracy_environment"),
        tasks=lm_eval_tasks(),
    script:
        "../scripts/build_accuracy_environment.py"


rule check_environment:
    """Check the environment on the machine that will run it: imports, versions, server options."""
    input:
        hardware="<run>/hardware.json",
        environment="<run>/environments/{environment}/environment.json",
        settings=ancient(settings()),
    output:
        check="<run>/environments/{environment}/check.json",
    log:
        "<logs>/check_environment/{environment}.log",
    benchmark:
        "<benchmarks>/check_environment/{environment}.tsv"
    resources:
        **small_job_site("check_environment"),
        runtime=small_job_resource("check_environment", "runtime"),
        gres=small_job_resource("check_environment", "gres"),
        cpus_per_task=small_job_resource("check_environment", "cpus_per_task"),
        mem_mb=small_job_resource("check_environment", "mem_mb"),
        slurm_exclusive=small_job_resource("check_environment", "slurm_exclusive"),
    params:
        code=code_of("check_environment"),
        needs_ray=needs_ray,
        needs_router=needs_router,
        modules=experiment.config.cluster.modules if experiment.config.cluster else (),
    script:
        "../scripts/check_environment.py"
