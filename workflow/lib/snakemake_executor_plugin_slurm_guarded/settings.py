"""The executor's settings on the command line, and what Snakemake wants to know of it."""

from dataclasses import dataclass, field

from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_executor_plugins.settings import CommonSettings, ExecutorSettingsBase


def _told(help_text: str) -> dict[str, object]:
    return {"help": help_text, "env_var": False, "required": False}


@dataclass
class ExecutorSettings(ExecutorSettingsBase):
    """Waits are in seconds."""

    logdir: str = field(
        default="",
        metadata=_told(
            "Folder for the jobs' own logs. Default: beside the file that SERVEMARK_JOBS_FILE names, else .snakemake/slurm_logs."
        ),
    )
    requeue: bool = field(
        default=False,
        metadata=_told("Let Slurm start a job again after a node failure or preemption (sbatch --requeue)."),
    )
    first_look: float = field(default=1.0, metadata=_told("From a job's submission to the first look at its state."))
    shortest_interval: float = field(
        default=2.0, metadata=_told("Between looks while jobs are young; grows with a tenth of their time.")
    )
    longest_interval: float = field(default=15.0, metadata=_told("Between looks at jobs that run long."))
    submit_patience: float = field(
        default=600.0, metadata=_told("How long a submission waits for a controller that does not answer.")
    )
    lost_after: float = field(default=30.0, metadata=_told("A job that Slurm does not know for so long is given up."))
    cancel_within: float = field(
        default=6.0,
        metadata=_told("How long the end of an interrupted run waits for scancel; the guard goes on after it."),
    )

    def __post_init__(self) -> None:
        waits = (self.first_look, self.shortest_interval, self.longest_interval, self.lost_after, self.cancel_within)
        if min(waits) <= 0 or self.submit_patience < 0 or self.longest_interval < self.shortest_interval:
            raise WorkflowError(
                "slurm-guarded: waits must be positive, and the longest interval not below the shortest one."
            )


common_settings = CommonSettings(
    non_local_exec=True,
    implies_no_shared_fs=False,
    job_deploy_sources=False,
    pass_default_storage_provider_args=True,
    pass_default_resources_args=True,
    pass_envvar_declarations_to_cmd=False,
    auto_deploy_default_storage_provider=False,
)
