"""Weights and tokenizer.

Input: a model's source. Output: its manifest, every file with its sha256. The files themselves are in the cache (made there or
downloaded from the hub) or stay where they are.
"""


rule stage_weights:
    """Make, download or find the model's files, and hash them."""
    input:
        settings=ancient(settings()),
    output:
        manifest="<run>/models/{model}/manifest.json",
    log:
        "<logs>/stage_weights/{model}.log",
    benchmark:
        "<benchmarks>/stage_weights/{model}.tsv"
    localrule: runs_on_login(experiment.config.cluster and experiment.config.cluster.stage_on)
    resources:
        **small_job_site("stage_weights"),
        runtime=small_job_resource("stage_weights", "runtime"),
        gres=small_job_resource("stage_weights", "gres"),
        cpus_per_task=small_job_resource("stage_weights", "cpus_per_task"),
        mem_mb=small_job_resource("stage_weights", "mem_mb"),
        slurm_exclusive=small_job_resource("stage_weights", "slurm_exclusive"),
    params:
        code=code_of("stage_weights"),
        source=model_source,
        load_format=load_format,
    script:
        "../scripts/stage_weights.py"
