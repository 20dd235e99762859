"""Errors a user can act on: each states what happened, where to look and what to do next."""

from typing import Any

from snakemake_executor_plugin_slurm_guarded.errors import GuardedError


class ServemarkError(GuardedError):
    """A condition that the user can understand and change; shown without a traceback. Arguments as of GuardedError."""

    exit_code = 1
    default_reason = "error"


class ConfigError(ServemarkError):
    """The configuration cannot be used; nothing was started."""

    exit_code = 2
    default_reason = "bad_config"


class RunLocked(ServemarkError):
    """Another run of this checkout is alive."""

    exit_code = 2
    default_reason = "run_locked"


class EnvironmentRefused(ServemarkError):
    """No environment can be built or used as asked."""

    default_reason = "environment_refused"


class WeightsRefused(ServemarkError):
    """A model's files are missing, changed, truncated or of a refused kind."""

    default_reason = "weights_refused"


class DatasetRefused(ServemarkError):
    """A dataset of prompts is missing, or a row of it cannot be used."""

    default_reason = "dataset_refused"


class PlanRefused(ServemarkError):
    """The topology cannot serve this model on this hardware."""

    default_reason = "plan_refused"


class StageFailed(ServemarkError):
    """A stage of a deployment failed: the rest of the run continues. ``quote``: log lines that state the cause, verbatim."""

    default_reason = "stage_failed"

    def __init__(self, what: str, *, quote: tuple[str, ...] = (), **rest: Any) -> None:
        self.quote = tuple(quote)
        super().__init__(what, **rest)
