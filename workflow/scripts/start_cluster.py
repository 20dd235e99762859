"""Check the nodes and start the processes below the server: supervisor, remote nodes, Ray."""

from pathlib import Path
from typing import TYPE_CHECKING

from servemark.deployment import cluster
from servemark.deployment.context import StageContext
from servemark.measurement.ledger import Ledger
from servemark.run.stage import stage

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

folder = Path(snakemake.output.cluster).parent
with stage("start_cluster", snakemake.wildcards.deployment, snakemake.log[0], folder, begins=True) as here:
    context = StageContext.read(here, snakemake.input.settings, snakemake.input.plan)
    record = cluster.start(context, Ledger(context.config.ledger_folder), hold=snakemake.wildcards.life == "serving")
    here.write(record, snakemake.output.cluster)
