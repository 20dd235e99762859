"""Start vLLM's server."""

from pathlib import Path
from typing import TYPE_CHECKING

from servemark.config.load import read_resolved
from servemark.deployment import server
from servemark.records import Cluster, Environment, Fabric, Hardware, Manifest, Plan
from servemark.stage import stage

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

folder = Path(snakemake.output.endpoint).parent
with stage("serve_model", snakemake.wildcards.deployment, snakemake.log[0], folder) as here:
    serving = server.Serving(
        Plan.read(snakemake.input.plan),
        Cluster.read(snakemake.input.cluster),
        Environment.read(snakemake.input.environment),
        Manifest.read(snakemake.input.manifest),
        Hardware.read(snakemake.input.hardware),
        port=snakemake.params.port,
        stop_s=read_resolved(snakemake.input.settings).timeouts.stop,
        progress=here.progress,
    )
    here.write(serving.run(Fabric.read(snakemake.input.fabric)), snakemake.output.endpoint)
