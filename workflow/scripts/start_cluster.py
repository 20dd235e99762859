"""Take the nodes and bring up what the deployment stands on."""

from pathlib import Path
from typing import TYPE_CHECKING

from servemark.config.load import read_resolved
from servemark.deployment import cluster
from servemark.launch import compile_cache
from servemark.measurement.ledger import Ledger
from servemark.records import Environment, Hardware, Manifest, Plan
from servemark.run.stage import stage

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

folder = Path(snakemake.output.cluster).parent
with stage("start_cluster", snakemake.wildcards.deployment, snakemake.log[0], folder, begins=True) as here:
    config, plan = read_resolved(snakemake.input.settings), Plan.read(snakemake.input.plan)
    hardware = Hardware.read(snakemake.input.hardware)
    token = cluster.start(
        plan,
        Environment.read(snakemake.input.environment),
        Manifest.read(snakemake.input.manifest),
        hardware,
        Ledger(config.ledger_folder),
        config,
        folder,
        hold=snakemake.wildcards.life == "serving",
        caches=compile_cache.place(config, plan, hardware),
        log=here.log,
        progress=here.progress,
        watch=here.watch,
    )
    here.write(token, snakemake.output.cluster)
