"""The type of a deployment's accuracy checks (`checks`)."""

from typing import Annotated

from pydantic import Field, field_validator

from servemark.config.field_types import Amount, Flag, Location, refuse
from servemark.records import Strict
from servemark.records.base import Count

CHECK_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_.-]*$"
METRIC_PATTERN = r"^\S+$"
CheckName = Annotated[str, Field(pattern=CHECK_PATTERN, max_length=80)]


class Check(Strict):
    """One accuracy check: a task of lm-eval on the live deployment."""

    limit: Count = Field(description="number of examples of the task, from the first one; of a group of tasks: of each one")
    min: Annotated[float, Field(strict=True, ge=0, le=1)] = Field(
        description="the lowest accuracy, 0 to 1. Below it, every measurement of the deployment is SUSPECT. Changing it runs nothing again"
    )
    task: Location | None = Field(
        default=None,
        description="YAML file of your own task in lm-eval's format, in a folder with its data; the whole folder is part of the ledger "
        "key. Default: the check's name is that of a task that comes with lm-eval",
    )
    shots: Amount | None = Field(default=None, description="examples with answers before each question; default: as the task states")
    metric: Annotated[str, Field(pattern=METRIC_PATTERN)] | None = Field(
        default=None,
        description="metric that `min` is compared with, in lm-eval's spelling, such as `exact_match,flexible-extract`; default the task's "
        "first one",
    )
    chat_template: Flag = Field(default=False, description="frame the prompts with the tokenizer's chat template, for chat models")

    @field_validator("task")
    @classmethod
    def _yaml(cls, task: Location | None) -> Location | None:
        if task and task.suffix not in (".yaml", ".yml"):
            raise refuse("must be a YAML file of lm-eval; for a task that comes with lm-eval, leave `task` out and name the check after it")
        return task
