"""The stages of one deployment, one group: on a cluster a single job, without a scheduler separate jobs in the same order.

Input: plan.json. Output: a record for every load point, startup.json and stopped.json. cluster.json, endpoint.json and ready.json are
live records: they exist while a run works on the deployment. A live record may outlive its server; then supervisor.json records
how the server ended.

The wildcard `life` is `deployments` if the deployment is measured, and `serving` if its endpoint serves users (serving.smk).

A failed stage does not fail its rule: it stops the deployment and writes the failure into its record. The later stages copy the failure
into theirs. So other deployments, the report and the archive continue, and check_measurements fails the run at the end.
"""


wildcard_constraints:
    life=f"deployments|{serving.FOLDER}",


# Without a scheduler a group has no effect, but it slows down a dry run of many deployments.
ALLOCATION = "deployment" if SCHEDULED else None


rule start_cluster:
    """Check each node of the allocation; start Ray if the topology needs it."""
    input:
        plan="<run>/deployments/{deployment}/plan.json",
        environment=environment_of,
        manifest=ancient(manifest_of),
        hardware="<run>/hardware.json",
        settings=ancient(settings()),
        plans=ancient("<run>/plans.json"),
    output:
        cluster=temp("<run>/{life}/{deployment}/cluster.json"),
    log:
        "<logs>/{life}/start_cluster/{deployment}.log",
    benchmark:
        "<benchmarks>/{life}/start_cluster/{deployment}.tsv"
    priority: 10
    group:
        ALLOCATION
    resources:
        **allocation_site(),
        runtime=allocation_resource("runtime"),
        nodes=allocation_resource("nodes"),
        gres=allocation_resource("gres"),
        cpus_per_task=allocation_resource("cpus_per_task"),
        mem_mb=allocation_resource("mem_mb"),
        slurm_exclusive=allocation_resource("slurm_exclusive"),
        slurm_second=allocation_resource("slurm_second"),
    script:
        "../scripts/start_cluster.py"


rule check_fabric:
    """Check that all ranks reach each other, and how, before a model is loaded."""
    input:
        cluster="<run>/{life}/{deployment}/cluster.json",
        plan="<run>/deployments/{deployment}/plan.json",
        environment=environment_of,
        hardware="<run>/hardware.json",
        settings=ancient(settings()),
    output:
        fabric="<run>/{life}/{deployment}/fabric.json",
    log:
        "<logs>/{life}/check_fabric/{deployment}.log",
    benchmark:
        "<benchmarks>/{life}/check_fabric/{deployment}.tsv"
    priority: 15
    group:
        ALLOCATION
    script:
        "../scripts/check_fabric.py"


rule serve_model:
    """Start vLLM's servers under the supervisor, and the router where there is one."""
    input:
        cluster="<run>/{life}/{deployment}/cluster.json",
        fabric="<run>/{life}/{deployment}/fabric.json",
        plan="<run>/deployments/{deployment}/plan.json",
        environment=environment_of,
        manifest=manifest_of,
        hardware="<run>/hardware.json",
        settings=ancient(settings()),
    output:
        endpoint=temp("<run>/{life}/{deployment}/endpoint.json"),
    log:
        "<logs>/{life}/serve_model/{deployment}.log",
    benchmark:
        "<benchmarks>/{life}/serve_model/{deployment}.tsv"
    priority: 20
    group:
        ALLOCATION
    params:
        port=port_of,
    script:
        "../scripts/serve_model.py"


rule await_ready:
    """Wait until the server completes a real request; record the start-up breakdown."""
    input:
        cluster="<run>/{life}/{deployment}/cluster.json",
        endpoint="<run>/{life}/{deployment}/endpoint.json",
        plan="<run>/deployments/{deployment}/plan.json",
        settings=ancient(settings()),
    output:
        ready=temp("<run>/{life}/{deployment}/ready.json"),
        startup=report(
            "<run>/{life}/{deployment}/startup.json",
            caption="../report/startup.rst",
            category="Deployments",
            subcategory="{deployment}",
            labels={"what": "start-up"},
        ),
    log:
        "<logs>/{life}/await_ready/{deployment}.log",
    benchmark:
        "<benchmarks>/{life}/await_ready/{deployment}.tsv"
    priority: 30
    group:
        ALLOCATION
    script:
        "../scripts/await_ready.py"


rule measure:
    """Take one load point from the ledger, or measure it now; give it a verdict."""
    input:
        ready=ancient("<run>/deployments/{deployment}/ready.json"),
        predecessor=ancient(predecessor),
        plan="<run>/deployments/{deployment}/plan.json",
        settings=ancient(settings()),
    output:
        record="<run>/deployments/{deployment}/points/{point}.json",
        raw="<run>/deployments/{deployment}/points/{point}.requests.json",
    log:
        "<logs>/measure/{deployment}/{point}.log",
    benchmark:
        "<benchmarks>/measure/{deployment}/{point}.tsv"
    priority: 40
    group:
        ALLOCATION
    params:
        code=code_of("measure"),
        # collect_measurements compares the repetitions.
        thresholds=experiment.config.verdict.model_dump(exclude={"max_repetition_spread"}) | required_transport(),
    script:
        "../scripts/measure.py"


rule search:
    """Measure one load after another until the highest one that meets the latency targets is found, or the trials are used."""
    input:
        ready=ancient("<run>/deployments/{deployment}/ready.json"),
        predecessor=ancient(predecessor_of_search),
        plan="<run>/deployments/{deployment}/plan.json",
        settings=ancient(settings()),
    output:
        # Its trials are load points whose names depend on results; the main process checks that their files exist.
        search="<run>/deployments/{deployment}/searches/{workload}/search.json",
    log:
        "<logs>/search/{deployment}/{workload}.log",
    benchmark:
        "<benchmarks>/search/{deployment}/{workload}.tsv"
    priority: 45
    group:
        ALLOCATION
    params:
        code=code_of("search"),
        thresholds=experiment.config.verdict.model_dump() | required_transport(),
        targets=lambda wildcards: searches.targets(experiment.config)[wildcards.workload],
    script:
        "../scripts/search.py"


rule check_accuracy:
    """Run one accuracy check with lm-eval on the live server, or take it from the ledger."""
    input:
        ready=ancient("<run>/deployments/{deployment}/ready.json"),
        predecessor=ancient(predecessor_of_check),
        plan="<run>/deployments/{deployment}/plan.json",
        environment="<run>/accuracy/environment.json",
        settings=ancient(settings()),
    output:
        accuracy="<run>/deployments/{deployment}/checks/{check}/accuracy.json",
    log:
        "<logs>/check_accuracy/{deployment}/{check}.log",
    benchmark:
        "<benchmarks>/check_accuracy/{deployment}/{check}.tsv"
    priority: 47
    group:
        ALLOCATION
    params:
        code=code_of("check_accuracy"),
    script:
        "../scripts/check_accuracy.py"


rule stop_deployment:
    """Stop server and cluster; verify that no process is left; record how each process ended."""
    input:
        ready=ancient("<run>/deployments/{deployment}/ready.json"),
        points=points_of,
        searches=searches_of,
        checks=checks_of,
        plan="<run>/deployments/{deployment}/plan.json",
        settings=ancient(settings()),
    output:
        stopped="<run>/deployments/{deployment}/stopped.json",
    log:
        "<logs>/stop_deployment/{deployment}.log",
    benchmark:
        "<benchmarks>/stop_deployment/{deployment}.tsv"
    priority: 50
    group:
        ALLOCATION
    script:
        "../scripts/stop_deployment.py"
