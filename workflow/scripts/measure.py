"""Take one load point from the ledger, or measure it on the live server."""

from pathlib import Path
from typing import TYPE_CHECKING

from servemark.deployment.context import StageContext
from servemark.deployment.measure import Measuring
from servemark.measurement.ledger import Ledger
from servemark.run.stage import stage

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

folder = Path(snakemake.output.record).parents[1]
with stage("measure", snakemake.wildcards.deployment, snakemake.log[0], folder) as here:
    context = StageContext.read(here, snakemake.input.settings, snakemake.input.plan)
    measuring = Measuring(context, Ledger(context.config.ledger_folder))
    record = measuring.run(snakemake.wildcards.point, Path(snakemake.input.ready), Path(snakemake.output.raw))
    here.write(record, snakemake.output.record)
