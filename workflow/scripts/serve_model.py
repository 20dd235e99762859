"""Start vLLM's server."""

from pathlib import Path
from typing import TYPE_CHECKING

from servemark.deployment.context import StageContext
from servemark.deployment.server import Serving
from servemark.records import Cluster, Fabric
from servemark.run.stage import stage

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

folder = Path(snakemake.output.endpoint).parent
with stage("serve_model", snakemake.wildcards.deployment, snakemake.log[0], folder) as here:
    context = StageContext.read(here, snakemake.input.settings, snakemake.input.plan)
    serving = Serving(context, Cluster.read(snakemake.input.cluster), snakemake.params.port)
    here.write(serving.run(Fabric.read(snakemake.input.fabric)), snakemake.output.endpoint)
