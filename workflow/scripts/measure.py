"""One load point, from the ledger or from the live server."""

from pathlib import Path
from typing import TYPE_CHECKING

from servemark.config.load import read_resolved
from servemark.deployment.measure import Measuring
from servemark.measurement.ledger import Ledger
from servemark.records import Environment, Manifest, Plan
from servemark.stage import stage

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

folder = Path(snakemake.output.record).parents[1]
with stage("measure", snakemake.wildcards.deployment, snakemake.log[0], folder) as here:
    config = read_resolved(snakemake.input.settings)
    measuring = Measuring(
        Plan.read(snakemake.input.plan),
        Environment.read(snakemake.input.environment),
        Manifest.read(snakemake.input.manifest),
        Ledger(config.ledger_folder),
        config.verdict,
        config.timeouts,
        folder,
        here,
    )
    record = measuring.run(snakemake.wildcards.point, Path(snakemake.input.ready), Path(snakemake.output.raw))
    here.write(record, snakemake.output.record)
