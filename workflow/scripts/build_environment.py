"""Build the locked environment, or describe an existing prefix."""

from pathlib import Path
from typing import TYPE_CHECKING

from servemark import environment
from servemark.config.load import read_resolved
from servemark.stage import stage

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

name, asked = snakemake.wildcards.environment, snakemake.params.environment
with stage("build_environment", name, snakemake.log[0]) as here:
    if asked["prefix"]:
        record = environment.use_prefix(name, Path(asked["prefix"]))
    else:
        config = read_resolved(snakemake.input.settings)
        record = environment.build(
            name,
            environment.Lock.find(asked["lock"], Path("envs")),
            Path(config.cache),
            log=here.log,
            timeout_s=config.timeouts.build,
            progress=here.progress,
            watch=here.watch,
        )
    record.write(snakemake.output.environment)
    here.progress.say(f"{record.packages} packages in {record.prefix}")
