"""Datasets of prompts.

Input: a workload's dataset. Output: its record with digest and lengths. The rows themselves are in the cache.
"""


rule stage_dataset:
    """Check every row of a dataset, and write the rows as one file; runs once for each distinct dataset."""
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
        responses=lambda wildcards: wildcards.dataset in datasets_by_name(recorded=True),
    script:
        "../scripts/stage_dataset.py"
