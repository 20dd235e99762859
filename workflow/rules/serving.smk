"""An endpoint for people to use: `snakemake serve` starts every deployment and holds it until it is stopped or its time is over.

Takes what measuring takes, through the same stages. Gives <run>/serving/{deployment}/: how-to-use.txt and status.json while it lives,
held.json when it has ended well. Nothing there mixes with measurements. One deployment alone: ask for its held.json. Asked again, it
serves again: the main process removes held.json before Snakemake looks.

On a cluster a job is asked for as long as the cluster file's max_minutes and the partition allow, a day at most;
`--set-resources start_cluster_to_hold:runtime=MINUTES` asks for another time.
"""

from servemark.run import run_lock

if workflow.is_main_process and run_lock.executes(sys.argv[1:]):
    serving.begin(experiment.folder, experiment.points, sys.argv[1:], scheduled=SCHEDULED)


use rule start_cluster as start_cluster_to_hold with:
    output:
        cluster=temp("<run>/serving/{deployment}/cluster.json"),
    log:
        "<logs>/serving/start_cluster/{deployment}.log",
    benchmark:
        "<benchmarks>/serving/start_cluster/{deployment}.tsv"
    resources:
        **of_an_endpoint(),
    params:
        hold=True,


use rule check_fabric as check_fabric_to_hold with:
    input:
        cluster="<run>/serving/{deployment}/cluster.json",
        plan="<run>/deployments/{deployment}/plan.json",
        environment=environment_of,
        hardware="<run>/hardware.json",
        settings=ancient(settings()),
    output:
        fabric="<run>/serving/{deployment}/fabric.json",
    log:
        "<logs>/serving/check_fabric/{deployment}.log",
    benchmark:
        "<benchmarks>/serving/check_fabric/{deployment}.tsv"


use rule serve_model as serve_model_to_hold with:
    input:
        cluster="<run>/serving/{deployment}/cluster.json",
        fabric="<run>/serving/{deployment}/fabric.json",
        plan="<run>/deployments/{deployment}/plan.json",
        environment=environment_of,
        manifest=manifest_of,
        hardware="<run>/hardware.json",
        settings=ancient(settings()),
    output:
        endpoint=temp("<run>/serving/{deployment}/endpoint.json"),
    log:
        "<logs>/serving/serve_model/{deployment}.log",
    benchmark:
        "<benchmarks>/serving/serve_model/{deployment}.tsv"


use rule await_ready as await_ready_to_hold with:
    input:
        cluster="<run>/serving/{deployment}/cluster.json",
        endpoint="<run>/serving/{deployment}/endpoint.json",
        plan="<run>/deployments/{deployment}/plan.json",
        settings=ancient(settings()),
    output:
        ready=temp("<run>/serving/{deployment}/ready.json"),
        startup="<run>/serving/{deployment}/startup.json",
    log:
        "<logs>/serving/await_ready/{deployment}.log",
    benchmark:
        "<benchmarks>/serving/await_ready/{deployment}.tsv"


rule hold_endpoint:
    """Keep the endpoint until it is stopped or its time is over; tell its address and how much it is used."""
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
    """Every deployment of the configuration as an endpoint."""
    input:
        held=of_every_deployment("<run>/serving/{deployment}/held.json"),
    localrule: True
