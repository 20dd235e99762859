"""State that every deployment of the run has a plan."""

import json
from typing import TYPE_CHECKING

from servemark.records import Plan, write_atomically
from servemark.stage import stage

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with stage("confirm_plans", "", snakemake.log[0]):
    plans = [Plan.read(path) for path in snakemake.input.plans]
    points = {plan.deployment: len(plan.points) for plan in plans}
    write_atomically(snakemake.output.plans, json.dumps({"load_points": points}, indent=2) + "\n")
