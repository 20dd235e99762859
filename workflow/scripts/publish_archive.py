"""Run the command `publish` with the archive's path."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from servemark.run import publish
from servemark.run.stage import stage

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with stage("publish_archive", "", snakemake.log[0]) as here:
    archive = Path(snakemake.input.archive).absolute()
    published = publish.publish(tuple(snakemake.params.command), archive, here, os.environ)
    published.write(snakemake.output.published)
    here.progress.say(f"published {archive}")
