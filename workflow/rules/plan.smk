"""Planning.

Takes hardware, environment check and manifest. Gives plan.json: a deployment that is known to be legal, with its load points; and
plans.json, which says that all of them are.
"""


rule plan_deployment:
    """Refuse what cannot be served before anything is started; estimate memory; list the load points with their ledger keys."""
    input:
        hardware="<run>/hardware.json",
        check=environment_check_of,
        manifest=manifest_of,
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
    """Nothing is started while one deployment of the run cannot be served."""
    input:
        plans=per_deployment("<run>/deployments/{deployment}/plan.json"),
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
