"""Everything the figures rest on, in one file."""

from pathlib import Path
from typing import TYPE_CHECKING

from servemark import archive, results
from servemark.stage import stage

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with stage("archive_results", "", snakemake.log[0]) as here:
    run_folder = Path(snakemake.input.report).parent
    files = results.archived_files(run_folder, Path("envs"))
    info = archive.seal(files, Path(snakemake.output.archive), secrets=results.live_secrets(run_folder))
    here.progress.say(f"wrote {info.path} ({info.files} files, {info.size / 2**20:.1f} MiB)")
