"""A workflow of nothing but waiting, for the tests of the executor: ``done.NAME`` is one job, ``group.NAME`` a group of three rules.

REQUEST in the environment is the plugin's Request as JSON; SECONDS is how long a job takes.
"""

import json
import os

from servemark.run import signals
from snakemake_executor_plugin_slurm_guarded.request import Request

ASKED = Request(**json.loads(os.environ.get("REQUEST", "{}"))).resources()
SECONDS = os.environ.get("SECONDS", "1")


onstart:
    signals.install()


rule single:
    output:
        "done.{name}",
    log:
        "logs/{name}.log",
    resources:
        **ASKED,
    shell:
        "echo about to sleep > {log}; sleep {SECONDS}; echo $SLURM_JOB_ID > {output}"


rule begin:
    output:
        temp("begin.{deployment}"),
    group:
        "deployment"
    resources:
        **ASKED,
    shell:
        "scontrol show job -d $SLURM_JOB_ID > {output}"


rule middle:
    input:
        "begin.{deployment}",
    output:
        "middle.{deployment}",
    group:
        "deployment"
    shell:
        "sleep {SECONDS}; SLURM_CONF=$SNAKEMAKE_SLURM_GUARDED_CONF srun --jobid=$SLURM_JOB_ID --overlap --nodes=$(grep -oE 'NumNodes=[0-9]+' {input} | cut -d= -f2)"
        " --ntasks-per-node=1 --mem=0 sh -c 'echo $(hostname) $CUDA_VISIBLE_DEVICES' > {output}"


rule finish:
    input:
        "begin.{deployment}",
        "middle.{deployment}",
    output:
        "group.{deployment}",
    group:
        "deployment"
    resources:
        runtime=0,
    shell:
        "cat {input} > {output}"
