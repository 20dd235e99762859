"""Build the locked environment, or describe an existing prefix."""

import platform
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from servemark.config.resolved import read_resolved
from servemark.environments import build as environment
from servemark.environments import bytecode_cache, lockfiles
from servemark.environments.container import Builder
from servemark.records import Hardware
from servemark.run.stage import stage

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

name, asked = snakemake.wildcards.environment, snakemake.params.environment
with stage("build_environment", name, snakemake.log[0]) as here:
    config = read_resolved(snakemake.input.settings)
    cache, modules = Path(config.cache), snakemake.params.modules
    how: dict[str, Any] = {"log": here.log, "timeout_s": config.timeouts.build, "progress": here.progress, "watch": here.watch}
    if asked["container"]:
        record = Builder(name, asked["container"], cache, modules, **how).build()
    elif asked["prefix"]:
        record = environment.use_prefix(name, Path(asked["prefix"]), cache, here.progress)
    else:
        hardware = Hardware.read(snakemake.input.hardware)
        lock = lockfiles.choose(
            f"environments.{name}.lock", asked["lock"], lockfiles.ENVS, hardware, sys.version_info[:2], platform.machine()
        )
        if asked["lock"] == lockfiles.AUTO:
            here.progress.say(f"lock file {lock.name} fits {f'the node {hardware.host}' if config.cluster else 'this machine'}")
        if why := lockfiles.misplaced(lock, hardware):
            here.progress.say(f"lock file {lock.name} {why}. It is built on {hardware.host} because the configuration names it")
        record = environment.build(name, lock, cache, bundle=config.environments[name].wheels, **how)
    record = bytecode_cache.placed(record, cache, here.progress, modules)
    record.write(snakemake.output.environment)
    here.progress.say(f"{record.packages} packages in {record.prefix}")
