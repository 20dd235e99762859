"""Probe the machine that will run the model."""

from typing import TYPE_CHECKING

from servemark.machine import hardware, visible_gpus
from servemark.nodes import allocation
from servemark.planning.node_share import NodePart, Share, complete
from servemark.run.stage import stage

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with stage("probe_hardware", "", snakemake.log[0]) as here:
    found = hardware.probe()
    if snakemake.params.share:
        found = complete(found, Share(**snakemake.params.share), NodePart.read(*allocation.own_node()))
    found.write(snakemake.output.hardware)
    gpus = f"{len(found.gpus)} x {found.gpus[0].name}" if found.gpus else "no GPU"
    hiding = visible_gpus.hiding(found)
    here.progress.say(f"{found.host}: {found.cpu_count} CPUs, {found.memory_gib:.0f} GiB, {gpus}{f'; {hiding}' if hiding else ''}")
    for what, source in found.worked_out.items():
        here.progress.say(f"  {what}: {source}")
