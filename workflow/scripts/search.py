"""Search for the highest load that meets the latency targets, on the live server or from the ledger."""

from pathlib import Path
from typing import TYPE_CHECKING

from servemark.deployment.context import StageContext
from servemark.deployment.search import Searching
from servemark.measurement.ledger import Ledger
from servemark.run.stage import stage

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

folder = Path(snakemake.output.search).parents[2]
with stage("search", snakemake.wildcards.deployment, snakemake.log[0], folder) as here:
    context = StageContext.read(here, snakemake.input.settings, snakemake.input.plan)
    searching = Searching(context, Ledger(context.config.ledger_folder))
    found = searching.run(snakemake.wildcards.workload, Path(snakemake.input.ready), folder / "points")
    here.write(found, snakemake.output.search)
