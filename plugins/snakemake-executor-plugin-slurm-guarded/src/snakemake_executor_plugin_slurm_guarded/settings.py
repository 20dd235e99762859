"""The executor's settings on the command line, and the properties that Snakemake requires of an executor."""

# No `from __future__ import annotations`: Snakemake needs the types of the fields, not their names.
from dataclasses import dataclass, field
from typing import Any

from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_executor_plugins.settings import CommonSettings, ExecutorSettingsBase


def _setting(default: Any, help_text: str) -> Any:
    return field(default=default, metadata={"help": help_text, "env_var": False, "required": False})


@dataclass
class ExecutorSettings(ExecutorSettingsBase):
    """Settings ``--slurm-guarded-*``; waits are in seconds."""

    logdir: str = _setting("", "Folder for the jobs' logs. Default: the folder of the journal.")
    requeue: bool = _setting(False, "Let Slurm start a job again after a node failure or preemption (sbatch --requeue).")
    first_look: float = _setting(1.0, "Wait from a job's submission to the first query of its state.")
    shortest_interval: float = _setting(2.0, "Shortest wait between queries. The wait is a tenth of the jobs' time so far.")
    longest_interval: float = _setting(15.0, "Longest wait between queries.")
    submit_patience: float = _setting(600.0, "How long a submission waits for a controller that does not respond.")
    lost_after: float = _setting(30.0, "Time after which a job that Slurm does not list counts as lost.")
    cancel_within: float = _setting(6.0, "How long an interrupted run waits for scancel. After that, the guard process retries.")

    def __post_init__(self) -> None:
        waits = (self.first_look, self.shortest_interval, self.longest_interval, self.lost_after, self.cancel_within)
        if min(waits) <= 0 or self.submit_patience < 0 or self.longest_interval < self.shortest_interval:
            raise WorkflowError("slurm-guarded: waits must be positive, and the longest interval not below the shortest one.")


common_settings = CommonSettings(
    non_local_exec=True,
    implies_no_shared_fs=False,
    job_deploy_sources=False,
    pass_default_storage_provider_args=True,
    pass_default_resources_args=True,
    pass_envvar_declarations_to_cmd=False,
    auto_deploy_default_storage_provider=False,
)
