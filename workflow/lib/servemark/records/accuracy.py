"""Accuracy checks of a deployment: what is planned, and what lm-eval found."""

from pathlib import Path
from typing import Any

from pydantic import Field

from servemark.records.base import Failure, Record, Strict


class AskedCheck(Strict):
    """An accuracy check as the configuration asks for it. The minimum is not among it: changing it runs nothing again."""

    name: str = Field(description="name of the check; without `task`, the name of lm-eval's task")
    task: str | None = Field(default=None, description="path of the task's YAML file; null: a task that comes with lm-eval")
    data: str | None = Field(default=None, description="sha256 of all files in the folder of `task`; null: a task that comes with lm-eval")
    limit: int = Field(description="number of examples of each task, from the first one")
    shots: int | None = Field(default=None, description="examples with answers before each question; null: as the task states")
    metric: str | None = Field(default=None, description="metric in lm-eval's spelling; null: the task's first metric")
    chat_template: bool = Field(default=False, description="whether the tokenizer's chat template frames the prompts")
    lock: str = Field(description="sha256 of the lock file of lm-eval's environment")


class PlannedCheck(AskedCheck):
    """An accuracy check of one deployment, with its ledger key."""

    key: str = Field(description="ledger key, sha256 hex")


class Accuracy(Record):
    """The result of one accuracy check. The rule check_accuracy writes it."""

    KIND = "accuracy"
    deployment: str
    check: PlannedCheck
    key_parts: dict[str, Any]
    metric: str | None = Field(default=None, description="metric of `value`, in lm-eval's spelling; null: no result")
    value: float | None = Field(default=None, description="null: no result")
    stderr: float | None = Field(default=None, description="standard error of `value`; null: lm-eval gives none")
    samples: int | None = Field(default=None, description="number of examples; null: no result")
    data: dict[str, str] = Field(default={}, description="lm-eval's digest of the examples and prompts by task")
    lm_eval: str | None = Field(default=None, description="version of lm-eval")
    attempt: str | None = None
    started_at: str | None = None
    seconds: float | None = Field(default=None, description="duration of the check")
    result: str | None = Field(default=None, description="file name of lm-eval's results, next to the record")
    result_sha256: str | None = None
    failure: Failure | None = Field(default=None, description="why there is no result; null: there is one")

    @staticmethod
    def path(deployment: Path, name: str) -> Path:
        """Return the file of a check in a deployment's folder."""
        return deployment / "checks" / name / "accuracy.json"

    @staticmethod
    def path_name(deployment: str, name: str) -> str:
        """Return the name of the file in the run's folder and in the archive."""
        return Accuracy.path(Path("deployments", deployment), name).as_posix()
