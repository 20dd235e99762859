"""From records to a table, a report, an archive and the final check.

Input: every record of the run. Output: accounting.json of each deployment, measurements.csv and .parquet, report.html,
archive/RUN.tar.zst and, if nothing is left to measure again, check.json. Optional: exports/ and published.json.
"""


rule account_allocation:
    """Record the scheduler's account of a deployment's ended jobs; without a scheduler, record that there is none."""
    input:
        stopped="<run>/deployments/{deployment}/stopped.json",
        plan=ancient("<run>/deployments/{deployment}/plan.json"),
    output:
        accounting="<run>/deployments/{deployment}/accounting.json",
    log:
        "<logs>/account_allocation/{deployment}.log",
    benchmark:
        "<benchmarks>/account_allocation/{deployment}.tsv"
    localrule: True
    params:
        code=code_of("account_allocation"),
    script:
        "../scripts/account_allocation.py"


rule collect_measurements:
    """Write one row for each measurement, INVALID ones without results; mark loads whose repetitions differ."""
    input:
        accounting=per_deployment("<run>/deployments/{deployment}/accounting.json"),
    output:
        csv=report(
            "<run>/measurements.csv",
            caption="../report/measurements.rst",
            category="Result",
            labels={"what": "all measurements"},
        ),
        parquet="<run>/measurements.parquet",
        accuracy=["<run>/accuracy.csv"] if checked_deployments() else [],
    log:
        "<logs>/collect_measurements.log",
    benchmark:
        "<benchmarks>/collect_measurements.tsv"
    localrule: True
    params:
        **({"minima": accuracy.minima(experiment.config.model_dump(include={"deployments"}))} if checked_deployments() else {}),
        code=code_of("collect_measurements"),
        max_repetition_spread=experiment.config.verdict.max_repetition_spread,
        slo=slo.targets(experiment.config.model_dump(include={"slo", "workloads"})),
    script:
        "../scripts/collect_measurements.py"


rule write_report:
    """Write the report, one HTML file: software, hardware, results, verdicts, gaps."""
    input:
        table="<run>/measurements.parquet",
        settings=settings(),
        hardware="<run>/hardware.json",
        environments=per_name("environment", "<run>/environments/{name}/environment.json"),
        checks=per_name("environment", "<run>/environments/{name}/check.json"),
        manifests=per_name("model", "<run>/models/{name}/manifest.json"),
        plans=per_deployment("<run>/deployments/{deployment}/plan.json"),
        fabrics=per_deployment("<run>/deployments/{deployment}/fabric.json"),
        startups=per_deployment("<run>/deployments/{deployment}/startup.json"),
        stopped=per_deployment("<run>/deployments/{deployment}/stopped.json"),
        accounting=per_deployment("<run>/deployments/{deployment}/accounting.json"),
    output:
        report=report(
            "<run>/report.html",
            caption="../report/report.rst",
            category="Result",
            labels={"what": "HTML report"},
        ),
    log:
        "<logs>/write_report.log",
    benchmark:
        "<benchmarks>/write_report.tsv"
    localrule: True
    params:
        code=code_of("write_report"),
    script:
        "../scripts/write_report.py"


rule export_results:
    """Write the accepted measurements in the format of another project."""
    input:
        table="<run>/measurements.parquet",
    output:
        folder=directory("<run>/exports/{format}"),
    log:
        "<logs>/export_results/{format}.log",
    benchmark:
        "<benchmarks>/export_results/{format}.tsv"
    localrule: True
    params:
        code=code_of("export_results"),
    script:
        "../scripts/export_results.py"


rule archive_results:
    """Archive all files behind the results in one file; the same content gives the same bytes."""
    input:
        report="<run>/report.html",
        csv="<run>/measurements.csv",
        parquet="<run>/measurements.parquet",
        exports=[f"<run>/exports/{name}" for name in experiment.config.exports],
    output:
        archive=f"<run>/archive/{experiment.config.run}.tar.zst",
        digest=f"<run>/archive/{experiment.config.run}.tar.zst.sha256",
    log:
        "<logs>/archive_results.log",
    benchmark:
        "<benchmarks>/archive_results.tsv"
    localrule: True
    params:
        code=code_of("archive_results"),
        share_prompts=sorted(datasets_by_name(shared=True)),
    script:
        "../scripts/archive_results.py"


rule check_measurements:
    """The final check: moves INVALID measurements aside, so that the next run measures only these again, and fails."""
    input:
        archive=f"<run>/archive/{experiment.config.run}.tar.zst",
        csv="<run>/measurements.csv",
        settings=ancient(settings()),
    output:
        check="<run>/check.json",
    log:
        "<logs>/check_measurements.log",
    benchmark:
        "<benchmarks>/check_measurements.tsv"
    localrule: True
    params:
        code=code_of("check_measurements"),
    script:
        "../scripts/check_measurements.py"


rule publish_archive:
    """Run the configured command with the archive's path, once for each sealing."""
    input:
        # Snakemake compares the content of a small file, so a newer time alone does not run the command again.
        digest=f"<run>/archive/{experiment.config.run}.tar.zst.sha256",
        archive=ancient(f"<run>/archive/{experiment.config.run}.tar.zst"),
        check=ancient("<run>/check.json"),
    output:
        published="<run>/published.json",
    log:
        "<logs>/publish_archive.log",
    benchmark:
        "<benchmarks>/publish_archive.tsv"
    localrule: True
    params:
        command=experiment.config.publish,
        code=code_of("publish_archive"),
    script:
        "../scripts/publish_archive.py"
