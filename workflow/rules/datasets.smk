"""Data sets of prompts.

Input: a workload's data set. Output: its record with digest and lengths. The rows themselves are in the cache.
"""


rule stage_dataset:
    """Check every row of a data set, and write the rows as one file; runs once for each distinct data set."""
    input:
        rows=dataset_file,
        settings=ancient(settings()),
    output:
        dataset="<run>/datasets/{dataset}/dataset.json",
    log:
        "<logs>/stage_dataset/{dataset}.log",
    benchmark:
        "<benchmarks>/stage_dataset/{dataset}.tsv"
    localrule: True
    params:
        code=code_of("stage_dataset"),
        source=lambda wildcards: datasets_by_name()[wildcards.dataset].model_dump(mode="json", exclude_none=True),
    script:
        "../scripts/stage_dataset.py"
