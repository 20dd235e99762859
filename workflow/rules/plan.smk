"""Planning.

Input: hardware, environment check and manifest. Output: plan.json, a validated deployment with its load points; and plans.json, which
confirms that all deployments have one.
"""


rule plan_deployment:
    """Refuse a deployment that cannot be served; estimate its memory; list its load points with their ledger keys."""
    input:
        hardware="<run>/hardware.json",
        check=environment_check_of,
        manifest=manifest_of,
        datasets=datasets_of,
    output:
        plan=report(
            "<run>/deployments/{deployment}/plan.json",
            caption="../report/plan.rst",
            category="Deployments",
            subcategory="{deployment}",
            labels={"what": "plan"},
        ),
    log:
        "<logs>/plan_deployment/{deployment}.log",
    benchmark:
        "<benchmarks>/plan_deployment/{deployment}.tsv"
    localrule: True
    params:
        code=code_of("plan_deployment"),
        spec=deployment_parameters,
    script:
        "../scripts/plan_deployment.py"


rule confirm_plans:
    """Confirm that every deployment can be served, before any is started."""
    input:
        plans=per_deployment("<run>/deployments/{deployment}/plan.json"),
        accuracy=["<run>/accuracy/environment.json"] if checked_deployments() else [],
    output:
        plans="<run>/plans.json",
    log:
        "<logs>/confirm_plans.log",
    benchmark:
        "<benchmarks>/confirm_plans.tsv"
    localrule: True
    params:
        code=code_of("confirm_plans"),
    script:
        "../scripts/confirm_plans.py"
