"""Record the scheduler's account of a deployment's jobs."""

from pathlib import Path
from typing import TYPE_CHECKING

from servemark.deployment import accounting
from servemark.records import Plan
from servemark.run.stage import stage

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

folder = Path(snakemake.output.accounting).parent
# The deployment has ended, so this is not one of its stages.
with stage("account_allocation", snakemake.wildcards.deployment, snakemake.log[0]) as here:
    record = accounting.account(
        Plan.read(snakemake.input.plan),
        folder,
        folder.parents[1] / "slurm" / "jobs.jsonl",
        progress=here.progress,
    )
    record.write(snakemake.output.accounting)
