"""Whether Slurm suspended or resumed our own job: ``scontrol suspend``, gang scheduling, preemption by suspension."""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime

from servemark.measurement.silence import AGAIN
from servemark.supervisor.process_request import launcher_environment
from snakemake_executor_plugin_slurm_guarded import commands
from snakemake_executor_plugin_slurm_guarded.commands import CommandFailed, query_environment
from snakemake_executor_plugin_slurm_guarded.job_accounts import ENVIRONMENT

# Asked after each load point, so a controller that is away may cost each of them no more than this.
ASK_S = 10.0
# The time of the last suspension, or of the resumption after it; one for each component of a heterogeneous job.
_CHANGED = re.compile(r"\bSuspendTime=(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\b")


def since(began: datetime) -> str | None:
    """Return what Slurm recorded of a suspension of our job since a moment; None without one, outside a job, and without a response.

    Slurm's times are whole seconds of the controller's clock.
    """
    job = os.environ.get("SLURM_JOB_ID")
    if job is None:
        return None
    argv = ["scontrol", "show", "job", "-d", job]
    try:
        text = commands.run(argv, timeout_s=ASK_S, env=query_environment(launcher_environment()) | ENVIRONMENT)
    except CommandFailed:
        return None
    changed = max((datetime.fromisoformat(found).replace(tzinfo=UTC) for found in _CHANGED.findall(text)), default=None)
    if changed is None or changed < began.astimezone(UTC).replace(microsecond=0):
        return None
    return f"Slurm suspended job {job} during the measurement, or resumed it (SuspendTime {changed:%Y-%m-%d %H:%M:%S} UTC). {AGAIN}"
