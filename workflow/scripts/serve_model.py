"""Start vLLM's server."""

from pathlib import Path
from typing import TYPE_CHECKING

from servemark.config.load import read_resolved
from servemark.deployment import server
from servemark.launch import compile_cache
from servemark.records import Cluster, Environment, Fabric, Hardware, Manifest, Plan
from servemark.run.stage import stage

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

folder = Path(snakemake.output.endpoint).parent
with stage("serve_model", snakemake.wildcards.deployment, snakemake.log[0], folder) as here:
    config, plan = read_resolved(snakemake.input.settings), Plan.read(snakemake.input.plan)
    hardware = Hardware.read(snakemake.input.hardware)
    serving = server.Serving(
        plan,
        Cluster.read(snakemake.input.cluster),
        Environment.read(snakemake.input.environment),
        Manifest.read(snakemake.input.manifest),
        hardware,
        port=snakemake.params.port,
        stop_s=config.timeouts.stop,
        progress=here.progress,
        caches=compile_cache.place(config, plan, hardware),
    )
    here.write(serving.run(Fabric.read(snakemake.input.fabric)), snakemake.output.endpoint)
