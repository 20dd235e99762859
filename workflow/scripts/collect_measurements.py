"""Write all measurements into one table."""

from pathlib import Path
from typing import TYPE_CHECKING

from servemark.measurement import repetitions, slo
from servemark.records import Accounting, Measurement, record_files
from servemark.report import table
from servemark.run.stage import stage

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with stage("collect_measurements", "", snakemake.log[0]):
    accounts = [Accounting.read(path) for path in snakemake.input.accounting]
    records = list(record_files(Path(snakemake.output.csv).parent, [account.deployment for account in accounts]))
    measurements = repetitions.judged([Measurement.read(path) for path in records], snakemake.params.max_repetition_spread)
    raw = (path.with_suffix(".requests.json") for path in records)
    frame = table.tidy(measurements, accounts, slo.attainments(snakemake.params.slo, zip(measurements, raw, strict=True)))
    table.write_csv(frame, snakemake.output.csv)
    table.write_parquet(frame, snakemake.output.parquet)
