"""Write the accepted measurements in the format of another project."""

from pathlib import Path
from typing import TYPE_CHECKING

from servemark import exports
from servemark.records import write_atomically
from servemark.report import gather
from servemark.run.stage import stage

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with stage("export_results", snakemake.wildcards.format, snakemake.log[0]) as here:
    folder = Path(snakemake.output.folder)
    folder.mkdir(parents=True, exist_ok=True)
    found = gather.read(folder.parents[1], strict=True).collected()
    files = exports.files(found, snakemake.wildcards.format)
    for name, text in files.items():
        write_atomically(folder / name, text)
    here.progress.say(f"wrote {len(files)} file(s) to {folder}")
