"""Ask the environment what it can do."""

from typing import TYPE_CHECKING

from servemark import environment
from servemark.records import Environment
from servemark.stage import stage

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

name = snakemake.wildcards.environment
with stage("check_environment", name, snakemake.log[0]) as here:
    record = environment.check(
        Environment.read(snakemake.input.environment),
        needs_ray=snakemake.params.needs_ray,
        log=here.log,
        progress=here.progress,
        watch=here.watch,
    )
    record.write(snakemake.output.check)
    here.progress.say(
        f"vLLM {record.vllm}, torch {record.torch}, Ray {record.ray or 'none'}, platform {record.vllm_platform}"
    )
