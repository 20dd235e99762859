"""Run the final check: no INVALID measurement passes unnoticed."""

from pathlib import Path
from typing import TYPE_CHECKING

from servemark.config.resolved import read_resolved
from servemark.config.restarts import starts
from servemark.measurement.ledger import Ledger
from servemark.records import record_files
from servemark.run import final_check
from servemark.run.stage import stage

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with stage("check_measurements", "", snakemake.log[0]) as here:
    run_folder = Path(snakemake.output.check).parent
    config = read_resolved(snakemake.input.settings)
    ledger = Ledger(config.ledger_folder)
    records = record_files(run_folder, starts(config))
    check = final_check.check(run_folder, records, ledger, config.accept_invalid, here.progress)
    check.write(snakemake.output.check)
