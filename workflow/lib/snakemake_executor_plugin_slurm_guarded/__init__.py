"""Snakemake executor ``slurm-guarded``: submits jobs to Slurm and neither loses one nor waits for one for ever.

It stands on Snakemake's RemoteExecutor and, on the nodes, on the executor slurm-jobstep. What it knows about Slurm is in
``servemark.slurm``. Resources that it reads, named as in snakemake-executor-plugin-slurm: slurm_account, slurm_partition, qos,
constraint, nodes, gres, runtime, mem_mb, cpus_per_task, slurm_extra; and slurm_exclusive (1: whole nodes, all of their memory).

Jobs need the resource ``mpi`` (any text; the profile sets it for all): slurm-jobstep then runs them in the batch step itself. Otherwise
it puts them into a step of one task, which has lost SLURM_CONF and holds the cores that the rules' own srun wants.
"""

import sys

from servemark.config import command_line
from servemark.files import home
from snakemake_executor_plugin_slurm_guarded.executor import Executor
from snakemake_executor_plugin_slurm_guarded.settings import ExecutorSettings, common_settings

# Snakemake imports every plugin for its command line, on every node and with every executor, before it makes its own cache.
home.replace()

__all__ = ["Executor", "ExecutorSettings", "common_settings"]

# Snakemake imports this module whatever its executor, before it reads the configuration.
command_line.check(sys.argv)
