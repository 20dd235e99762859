"""Wait until the server answers a real completion."""

from pathlib import Path
from typing import TYPE_CHECKING

from servemark.config.load import read_resolved
from servemark.deployment import readiness
from servemark.records import Cluster, Endpoint, Plan
from servemark.run.stage import stage

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

folder = Path(snakemake.output.ready).parent
with stage("await_ready", snakemake.wildcards.deployment, snakemake.log[0], folder) as here:
    timeouts = read_resolved(snakemake.input.settings).timeouts
    waiting = readiness.Waiting(
        Plan.read(snakemake.input.plan),
        Cluster.read(snakemake.input.cluster),
        Endpoint.read(snakemake.input.endpoint),
        start_s=timeouts.start,
        stall_s=timeouts.stall,
        stop_s=timeouts.stop,
        progress=here.progress,
    )
    ready, startup = waiting.run(folder)
    here.write(startup, snakemake.output.startup)
    here.write(ready, snakemake.output.ready)
