"""Check the rows of a dataset, and write them as one file."""

from typing import TYPE_CHECKING

from servemark.config.resolved import read_resolved
from servemark.datasets import staging
from servemark.records import DatasetSource
from servemark.run.stage import stage

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with stage("stage_dataset", snakemake.wildcards.dataset, snakemake.log[0]) as here:
    config = read_resolved(snakemake.input.settings)
    source = DatasetSource.model_validate(snakemake.params.source)
    staged = staging.stage(source, config.cache, here.progress, responses=snakemake.params.responses, hub_cache=config.hub_cache)
    staged.write(snakemake.output.dataset)
    rate = f"{staged.arrivals_per_s:.4g} arrivals/s, " if staged.arrivals_per_s else ""
    here.progress.say(f"{rate}{staged.rows:,} rows, {staged.bytes / 2**20:.1f} MiB, sha256 {staged.sha256}")
