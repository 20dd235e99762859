"""Check the environment on the machine that will run it."""

from typing import TYPE_CHECKING

from servemark.config.resolved import read_resolved
from servemark.environments import model_classes
from servemark.environments.check import check
from servemark.records import Environment, Hardware
from servemark.run.stage import stage

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

name = snakemake.wildcards.environment
with stage("check_environment", name, snakemake.log[0]) as here:
    environment, hardware = Environment.read(snakemake.input.environment), Hardware.read(snakemake.input.hardware)
    config, modules = read_resolved(snakemake.input.settings), snakemake.params.modules
    record = check(
        environment,
        hardware,
        needs_ray=snakemake.params.needs_ray,
        needs_router=snakemake.params.needs_router,
        modules=modules,
        log=here.log,
        progress=here.progress,
        watch=here.watch,
    )
    record.write(snakemake.output.check)
    here.progress.say(
        f"vLLM {record.vllm}, torch {record.torch} (CUDA {record.torch_cuda or 'none'}), Ray {record.ray or 'none'}, platform "
        f"{record.vllm_platform}, a test tensor was summed on {record.tensor_on}"
    )
    for warning in record.warnings:
        here.progress.say(warning)
    sources = {config.models[one.model].source for one in config.deployments.values() if one.environment == name}
    wanted = model_classes.architectures(sources, config.cache, config.hub_cache)
    model_classes.describe(
        environment, hardware, wanted, config.cache, modules=modules, log=here.log, progress=here.progress, watch=here.watch
    )
