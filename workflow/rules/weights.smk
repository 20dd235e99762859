"""Weights and tokenizer.

Takes a model's source. Gives its manifest: every file with its sha256. The files themselves are in the cache (made there, or fetched
from the hub) or stay where they are.
"""


rule stage_weights:
    """Make, fetch or find the model's files and hash them."""
    input:
        settings=ancient(settings()),
    output:
        manifest="<run>/models/{model}/manifest.json",
    log:
        "<logs>/stage_weights/{model}.log",
    benchmark:
        "<benchmarks>/stage_weights/{model}.tsv"
    localrule: runs_here(lambda cluster: cluster.stage_on)
    resources:
        **of_a_small_job("stage_weights"),
    params:
        code=code_of("stage_weights"),
        source=model_source,
        load_format=load_format,
    script:
        "../scripts/stage_weights.py"
