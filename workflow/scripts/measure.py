"""One load point, from the ledger or from the live server."""

from pathlib import Path
from typing import TYPE_CHECKING

from servemark.config.load import read_resolved
from servemark.deployment.measure import Measuring
from servemark.measurement.ledger import Ledger
from servemark.records import Environment, Manifest, Plan
from servemark.run.stage import stage

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

folder = Path(snakemake.output.record).parents[1]
with stage("measure", snakemake.wildcards.deployment, snakemake.log[0], folder) as here:
    config = read_resolved(snakemake.input.settings)
    plan = Plan.read(snakemake.input.plan)
    run_folder = folder.parents[1]
    # The plan rests on both. As inputs of every point they would be a third of the files that Snakemake follows.
    measuring = Measuring(
        plan,
        Environment.read(run_folder / "environments" / plan.environment / "environment.json"),
        Manifest.read(run_folder / "models" / plan.model / "manifest.json"),
        Ledger(config.ledger_folder),
        config.verdict,
        config.timeouts,
        folder,
        here,
    )
    record = measuring.run(snakemake.wildcards.point, Path(snakemake.input.ready), Path(snakemake.output.raw))
    here.write(record, snakemake.output.record)
