"""Records to one tidy table."""

from typing import TYPE_CHECKING

from servemark.records import Accounting, Measurement
from servemark.report import table
from servemark.stage import stage

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with stage("collect_measurements", "", snakemake.log[0]):
    frame = table.tidy(
        [Measurement.read(path) for path in snakemake.input.records],
        [Accounting.read(path) for path in snakemake.input.accounting],
    )
    table.write_csv(frame, snakemake.output.csv)
    table.write_parquet(frame, snakemake.output.parquet)
