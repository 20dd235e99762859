"""An endpoint for people to use: `snakemake serve` starts every deployment and holds it until it is stopped or its time is over.

Takes what measuring takes, through the same stages. Gives <run>/serving/{deployment}/: how-to-use.txt and status.json while it lives,
held.json when it has ended well. Nothing there mixes with measurements. One deployment alone: ask for its held.json. Asked again, it
serves again: the main process removes held.json before Snakemake looks.

On a cluster a job is asked for as long as the cluster file's max_minutes and the partition allow, a day at most;
`--set-resources start_cluster:runtime=MINUTES` asks for another time.
"""

if experiment.executes:
    serving.begin(experiment.folder, experiment.points, sys.argv[1:], scheduled=SCHEDULED)


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
        held=per_deployment("<run>/serving/{deployment}/held.json"),
    localrule: True
