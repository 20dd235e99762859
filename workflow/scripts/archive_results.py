"""Archive the run: all files behind its results, in one file."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from servemark.archive import contents
from servemark.run.stage import stage

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with stage("archive_results", "", snakemake.log[0]) as here:
    run_folder = Path(snakemake.input.report).parent
    info = contents.archive(run_folder, Path("envs"), Path(snakemake.output.archive), os.environ)
    here.progress.say(f"wrote {info.path} ({info.files} files, {info.size / 2**20:.1f} MiB)")
