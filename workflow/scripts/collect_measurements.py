"""Write all measurements into one table."""

from pathlib import Path
from typing import TYPE_CHECKING

from servemark.measurement import accuracy, repetitions, slo
from servemark.records import Accounting, Accuracy, Measurement, accuracy_files, record_files, write_atomically
from servemark.report import accuracies, table
from servemark.run.stage import stage

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with stage("collect_measurements", "", snakemake.log[0]):
    accounts = [Accounting.read(path) for path in snakemake.input.accounting]
    run_folder, names = Path(snakemake.output.csv).parent, [account.deployment for account in accounts]
    records = list(record_files(run_folder, names))
    measurements = repetitions.judged([Measurement.read(path) for path in records], snakemake.params.max_repetition_spread)
    if snakemake.output.accuracy:
        minima, checked = snakemake.params.minima, {name: list(map(Accuracy.read, accuracy_files(run_folder, name))) for name in names}
        measurements = accuracy.judged(measurements, (one for found in checked.values() for one in found), minima)
        write_atomically(run_folder / accuracy.CSV, accuracies.csv_text(checked, minima))
    raw = (path.with_suffix(".requests.json") for path in records)
    frame = table.tidy(measurements, accounts, slo.attainments(snakemake.params.slo, zip(measurements, raw, strict=True)))
    table.write_csv(frame, snakemake.output.csv)
    table.write_parquet(frame, snakemake.output.parquet)
