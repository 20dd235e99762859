"""Hardware and environments.

Takes the configuration and envs/*.lock. Gives hardware.json, and environment.json and check.json for every environment.
"""


rule probe_hardware:
    """What the machine is that will run the model."""
    output:
        hardware="<run>/hardware.json",
    log:
        "<logs>/probe_hardware.log",
    benchmark:
        "<benchmarks>/probe_hardware.tsv"
    resources:
        **of_a_small_job("probe_hardware"),
    params:
        code=code_of("probe_hardware"),
        share=scheduled.share(experiment.config) if SCHEDULED else None,
    script:
        "../scripts/probe_hardware.py"


rule build_environment:
    """An interpreter with vLLM and Ray: built from a lock once, shared by all runs; or an existing prefix."""
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
    localrule: runs_here(lambda cluster: cluster.build_on)
    resources:
        **of_a_small_job("build_environment"),
    params:
        code=code_of("build_environment"),
        environment=environment_parameters,
    script:
        "../scripts/build_environment.py"


rule check_environment:
    """What the environment says of itself on the machine that will run it: imports, versions, server options."""
    input:
        hardware="<run>/hardware.json",
        environment="<run>/environments/{environment}/environment.json",
    output:
        check="<run>/environments/{environment}/check.json",
    log:
        "<logs>/check_environment/{environment}.log",
    benchmark:
        "<benchmarks>/check_environment/{environment}.tsv"
    resources:
        **of_a_small_job("check_environment"),
    params:
        code=code_of("check_environment"),
        needs_ray=needs_ray,
        needs_router=needs_router,
        modules=experiment.config.cluster.modules if experiment.config.cluster else (),
    script:
        "../scripts/check_environment.py"
