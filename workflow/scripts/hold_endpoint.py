"""Serve until the endpoint is stopped or its time is over."""

from pathlib import Path
from typing import TYPE_CHECKING

from servemark.deployment.context import StageContext
from servemark.deployment.hold import Holding
from servemark.records import Cluster, Ready
from servemark.run.stage import stage

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

folder = Path(snakemake.output.held).parent
with stage("hold_endpoint", snakemake.wildcards.deployment, snakemake.log[0], folder) as here:
    context = StageContext.read(here, snakemake.input.settings, snakemake.input.plan)
    holding = Holding(context, Cluster.read(snakemake.input.cluster), Ready.read(snakemake.input.ready))
    here.write(holding.run(), snakemake.output.held)
