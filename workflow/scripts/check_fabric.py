"""See that all ranks reach each other before a model is loaded."""

from pathlib import Path
from typing import TYPE_CHECKING

from servemark.config.load import read_resolved
from servemark.deployment import fabric
from servemark.records import Cluster, Environment, Hardware, Plan
from servemark.run.stage import stage

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

folder = Path(snakemake.output.fabric).parent
with stage("check_fabric", snakemake.wildcards.deployment, snakemake.log[0], folder) as here:
    timeouts = read_resolved(snakemake.input.settings).timeouts
    record = fabric.check(
        Plan.read(snakemake.input.plan),
        Cluster.read(snakemake.input.cluster),
        Environment.read(snakemake.input.environment),
        Hardware.read(snakemake.input.hardware),
        folder,
        timeout_s=timeouts.cluster,
        stop_s=timeouts.stop,
        log=here.log,
        progress=here.progress,
        watch=here.watch,
    )
    here.write(record, snakemake.output.fabric)
