"""Run one accuracy check on the live server, or take it from the ledger."""

from pathlib import Path
from typing import TYPE_CHECKING

from servemark.deployment.accuracy import Checking
from servemark.deployment.context import StageContext
from servemark.measurement.accuracy import Checks
from servemark.records import Environment
from servemark.run.stage import stage

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

record_path = Path(snakemake.output.accuracy)
with stage("check_accuracy", snakemake.wildcards.deployment, snakemake.log[0], record_path.parents[2]) as here:
    context = StageContext.read(here, snakemake.input.settings, snakemake.input.plan)
    checking = Checking(context, Checks(context.config.ledger_folder), Environment.read(snakemake.input.environment))
    found = checking.run(snakemake.wildcards.check, Path(snakemake.input.ready), record_path.parent)
    here.write(found, snakemake.output.accuracy)
