"""Check that all ranks reach each other before a model is loaded."""

from pathlib import Path
from typing import TYPE_CHECKING

from servemark.deployment import fabric
from servemark.deployment.context import StageContext
from servemark.records import Cluster
from servemark.run.stage import stage

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

folder = Path(snakemake.output.fabric).parent
with stage("check_fabric", snakemake.wildcards.deployment, snakemake.log[0], folder) as here:
    context = StageContext.read(here, snakemake.input.settings, snakemake.input.plan)
    here.write(fabric.check(context, Cluster.read(snakemake.input.cluster)), snakemake.output.fabric)
