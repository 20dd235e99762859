"""Write the report, one self-contained HTML file."""

from pathlib import Path
from typing import TYPE_CHECKING

from servemark.records import write_atomically
from servemark.report import gather, page
from servemark.run.stage import stage

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with stage("write_report", "", snakemake.log[0]) as here:
    data = gather.gather(Path(snakemake.output.report).parent)
    write_atomically(snakemake.output.report, page.render(data))
    here.progress.say(f"wrote {snakemake.output.report}")
