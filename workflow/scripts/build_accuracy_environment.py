"""Build the environment of lm-eval, and check that it has the configured tasks."""

from pathlib import Path
from typing import TYPE_CHECKING

from servemark.config.resolved import read_resolved
from servemark.environments import build as environment
from servemark.environments import bytecode_cache, lm_eval_tasks, lockfiles
from servemark.run.stage import stage

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with stage("build_accuracy_environment", "", snakemake.log[0]) as here:
    config = read_resolved(snakemake.input.settings)
    lock = lockfiles.accuracy(lockfiles.ENVS)
    record = environment.build(
        lock.name, lock, Path(config.cache), log=here.log, timeout_s=config.timeouts.build, progress=here.progress, watch=here.watch
    )
    record = bytecode_cache.placed(record, Path(config.cache), here.progress)
    if tasks := snakemake.params.tasks:
        here.progress.say(f"looking up lm-eval's tasks {', '.join(tasks)}")
        lm_eval_tasks.require(record, tasks, log=here.log, timeout_s=config.timeouts.build, watch=here.watch)
    record.write(snakemake.output.environment)
    here.progress.say(f"{record.packages} packages in {record.prefix}")
