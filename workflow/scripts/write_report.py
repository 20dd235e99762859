"""Write the report, one self-contained HTML file."""

from pathlib import Path
from typing import TYPE_CHECKING

from servemark.config.load import read_resolved
from servemark.records import write_atomically
from servemark.report import charts, gather, page
from servemark.run.stage import stage

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with stage("write_report", "", snakemake.log[0]) as here:
    config = read_resolved(snakemake.input.settings)
    data = gather.gather(Path(snakemake.output.report).parent)
    write_atomically(snakemake.output.report, page.render(data, bundle=charts.bundle(config.cache / "page")))
    here.progress.say(f"wrote {snakemake.output.report}")
