"""Stop the deployment and verify that no process is left."""

from pathlib import Path
from typing import TYPE_CHECKING

from servemark.config.resolved import read_resolved
from servemark.deployment.stop import stop
from servemark.records import Plan
from servemark.run.stage import stage

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

folder = Path(snakemake.output.stopped).parent
with stage("stop_deployment", snakemake.wildcards.deployment, snakemake.log[0], folder) as here:
    stopped = stop(
        Plan.read(snakemake.input.plan),
        folder,
        stop_s=read_resolved(snakemake.input.settings).timeouts.stop,
        log=here.log,
        progress=here.progress,
    )
    here.write(stopped, snakemake.output.stopped)
