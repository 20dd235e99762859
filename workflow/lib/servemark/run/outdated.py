"""Find deployments whose records belong to an older plan, or to older thresholds or latency targets.

Snakemake does not rerun all of their jobs. If a job has to run, Snakemake ignores changes of jobs downstream of it, and an ``ancient()``
input stops what the job itself causes (DAG.update_needrun, 9.27.1). confirm_plans is such a job. So records stay old after a run that ended
between plan_deployment and confirm_plans, or if one edit changes the plan of one deployment and the thresholds of all.
"""

from pathlib import Path

from servemark.config.model import Config
from servemark.config.searches import targets
from servemark.records import Accuracy, Measurement, Plan, Search


def is_outdated(deployment: Path, config: Config) -> bool:
    """Return whether a record differs from what plan and configuration ask for now; missing records do not count.

    Args:
        deployment: the deployment's folder in the run's results.
    """
    plan = Plan.read_or_none(deployment / "plan.json")
    if plan is None:
        return False
    asked = targets(config)
    ended = [search for one in plan.searches if (search := Search.read_or_none(Search.path(deployment, one.workload)))]
    if any(search.asked not in plan.searches or search.targets != asked.get(search.asked.workload, {}) for search in ended):
        return True
    checks = [Accuracy.read_or_none(deployment / "checks" / check.name / "accuracy.json") for check in plan.checks]
    if any(found and found.check not in plan.checks for found in checks):
        return True
    thresholds = config.verdict.model_dump()
    for point in plan.with_trials(ended).points:
        record = Measurement.read_or_none(deployment / "points" / f"{point.load.name}.json")
        # Records of another version may have other thresholds.
        if record and (record.key != point.key or any(thresholds.get(name, value) != value for name, value in record.thresholds.items())):
            return True
    return False
