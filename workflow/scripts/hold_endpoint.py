"""Keep the endpoint until it is stopped or its time is over."""

from pathlib import Path
from typing import TYPE_CHECKING

from servemark.config.load import read_resolved
from servemark.deployment.hold import Holding
from servemark.records import Cluster, Plan, Ready
from servemark.run.stage import stage

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

folder = Path(snakemake.output.held).parent
settings = read_resolved(snakemake.input.settings)
with stage("hold_endpoint", snakemake.wildcards.deployment, snakemake.log[0], folder) as here:
    holding = Holding(
        Plan.read(snakemake.input.plan),
        Cluster.read(snakemake.input.cluster),
        Ready.read(snakemake.input.ready),
        folder,
        stop_s=settings.timeouts.stop,
        log=here.log,
        progress=here.progress,
        exclusive=settings.cluster is None or settings.cluster.exclusive,
    )
    here.write(holding.run(), snakemake.output.held)
