"""Wait until the server completes a real request."""

from pathlib import Path
from typing import TYPE_CHECKING

from servemark.deployment.context import StageContext
from servemark.deployment.readiness import Waiting
from servemark.records import Cluster, Endpoint
from servemark.run.stage import stage

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

folder = Path(snakemake.output.ready).parent
with stage("await_ready", snakemake.wildcards.deployment, snakemake.log[0], folder) as here:
    context = StageContext.read(here, snakemake.input.settings, snakemake.input.plan)
    waiting = Waiting(context, Cluster.read(snakemake.input.cluster), Endpoint.read(snakemake.input.endpoint))
    ready, startup = waiting.run()
    here.write(startup, snakemake.output.startup)
    here.write(ready, snakemake.output.ready)
