"""Run the command `publish` with the archive's path."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from servemark.records import Published, utc_now
from servemark.run import publish
from servemark.run.stage import stage

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with stage("publish_archive", "", snakemake.log[0]) as here:
    archive = Path(snakemake.input.archive).absolute()
    command = tuple(snakemake.params.command)
    done = publish.publish(command, archive, here, os.environ)
    digest = publish.sha256_of(archive)
    published = Published(command=command, archive_sha256=digest, published_at=utc_now(), seconds=round(done.seconds, 3))
    published.write(snakemake.output.published)
    here.progress.say(f"published {archive}")
