"""Confirm that every deployment of the run has a plan."""

from typing import TYPE_CHECKING

from servemark.records import Plan, Plans
from servemark.run.stage import stage

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with stage("confirm_plans", "", snakemake.log[0]):
    plans = [Plan.read(path) for path in snakemake.input.plans]
    Plans(load_points={plan.deployment: len(plan.points) + sum(one.trials for one in plan.searches) for plan in plans}).write(
        snakemake.output.plans
    )
