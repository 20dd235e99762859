"""Endpoints for users: `snakemake serve` starts every deployment and serves until it is stopped or its time is over.

The stages and their inputs are those of a measurement. Output: <run>/serving/{deployment}/ with how-to-use.txt and status.json while the
endpoint is up, and held.json after a normal end. It is separate from the measurements. To serve one deployment, request its held.json.
A second request serves again, because the main process removes held.json first.

On a cluster the job's time limit is the largest that the cluster file's max_minutes and the partition allow, at most a day;
`--set-resources start_cluster:runtime=MINUTES` sets another one.
"""

if experiment.executes:
    serving.begin(experiment.folder, experiment.config.deployments, sys.argv[1:], scheduled=SCHEDULED)


rule hold_endpoint:
    """Serve until the endpoint is stopped or its time is over; publish its address and its load."""
    input:
        ready="<run>/serving/{deployment}/ready.json",
        cluster="<run>/serving/{deployment}/cluster.json",
        plan="<run>/deployments/{deployment}/plan.json",
        settings=ancient(settings()),
    output:
        held="<run>/serving/{deployment}/held.json",
    log:
        "<logs>/serving/hold_endpoint/{deployment}.log",
    benchmark:
        "<benchmarks>/serving/hold_endpoint/{deployment}.tsv"
    priority: 50
    group:
        ALLOCATION
    script:
        "../scripts/hold_endpoint.py"


rule serve:
    """Serve every deployment of the configuration."""
    input:
        held=[f"<run>/serving/{name}/held.json" for name in experiment.config.deployments],
    localrule: True
