"""Make, download or find a model's files, and hash them."""

from typing import TYPE_CHECKING

from servemark.config.resolved import read_resolved
from servemark.run.stage import stage
from servemark.weights import staging

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

name = snakemake.wildcards.model
with stage("stage_weights", name, snakemake.log[0]) as here:
    config = read_resolved(snakemake.input.settings)
    dummy = snakemake.params.load_format == "dummy"
    manifest = staging.stage(name, snakemake.params.source, config.cache, here.progress, hub=config.hub_cache, dummy=dummy)
    manifest.write(snakemake.output.manifest)
    parameters = "unknown number of" if manifest.parameters is None else f"{manifest.parameters:,}"
    here.progress.say(f"{len(manifest.files)} files, {manifest.bytes / 2**20:.1f} MiB, {parameters} parameters")
