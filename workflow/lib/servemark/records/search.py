"""A search for the highest load that meets the latency targets: what is planned, and its trials."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from servemark.records.base import Record, Strict
from servemark.records.load_point import AnyPrompts, LoadPoint


class PlannedPoint(Strict):
    """One load point of a deployment, with the ledger key of its measurement."""

    load: LoadPoint
    key: str = Field(description="ledger key, sha256 hex")


class PlannedSearch(Strict):
    """A search that a workload asks for. Its load points depend on its results, so the plan cannot list them."""

    workload: str
    variable: Literal["concurrency", "request_rate"] = Field(description="the load that is searched")
    low: float = Field(description="the lowest load, `from`")
    high: float = Field(description="the highest load, `to`")
    trials: int = Field(description="the most measurements")
    prompts: AnyPrompts | None = Field(
        default=None, description="of every trial, with the lengths that planning counted; null: as configured"
    )
    template_tokens: int | None = Field(default=0, description="of every trial, see there")

    def planned(self, load: LoadPoint) -> LoadPoint:
        """Return the load point of a trial with what planning found out about its prompts."""
        return load.model_copy(update={"template_tokens": self.template_tokens} | ({"prompts": self.prompts} if self.prompts else {}))

    def unplanned(self) -> "PlannedSearch":
        """Return the search as the configuration has it."""
        return self.model_copy(update={"prompts": None, "template_tokens": 0})


class SearchTrial(Strict):
    """One trial: a load point that is measured like any other, and what it changes."""

    point: PlannedPoint
    value: float = Field(description="the load: concurrency, or requests/s")
    verdict: Literal["VALID", "SUSPECT", "INVALID"] = Field(
        description="from archive format 6 on, after the comparison with the other trials of this load"
    )
    ratio: float | None = Field(description="latency over its target, the largest of all targets; null: not known")
    met: bool | None = Field(description="whether this measurement meets every target; null: not known")
    decision: Literal["meets", "misses", "open"] | None = Field(
        description="what all trials of this load decide so far; open: it cannot be told from the boundary; null: it is measured again"
    )
    meets: float | None = Field(description="bracket after this trial: the highest load that meets the targets; null: none known")
    misses: float | None = Field(description="bracket after this trial: the lowest load that misses the targets; null: none known")


class Search(Record):
    """The trials of a search in their order, and its result. The rule search writes it."""

    KIND = "search"
    deployment: str
    asked: PlannedSearch
    targets: dict[str, dict[str, float]] = Field(description="milliseconds, by latency and percentile")
    trials: tuple[SearchTrial, ...]
    meets: float | None = Field(description="the highest load that meets the targets; null: none found")
    misses: float | None = Field(description="the lowest load that misses the targets; null: none found")
    ended: Literal["narrow", "trials_used", "from_misses", "to_meets", "invalid"] = Field(
        description="narrow: the bracket cannot be divided; trials_used: the limit of trials; from_misses, to_meets: the bracket has one "
        "side; invalid: a trial is INVALID"
    )

    @staticmethod
    def path(deployment: Path, workload: str) -> Path:
        """Return the file of a search in a deployment's folder."""
        return deployment / "searches" / workload / "search.json"

    @staticmethod
    def path_name(deployment: str, workload: str) -> str:
        """Return the name of the file in the run's folder and in the archive."""
        return Search.path(Path("deployments", deployment), workload).as_posix()
