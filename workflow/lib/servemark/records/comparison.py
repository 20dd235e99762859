"""The comparison of two runs, or of a run with published numbers."""

from typing import Literal

from pydantic import Field

from servemark.records.base import Record, Strict

Verdict = Literal["better", "worse", "no difference shown", "cannot tell"]
Part = Literal["steady state", "whole run"]


class ComparedSide(Strict):
    """One of the two sides."""

    path: str
    kind: Literal["folder", "archive", "reference"]
    run: str = Field(description="name of the run, or of the reference")
    identity: str | None = Field(default=None, description="sha256 of the archive's manifest; null: not an archive")
    source: str | None = Field(default=None, description="where the reference's numbers were published; null: measured by servemark")


class Difference(Strict):
    """A fact that differs between the two sides of some pairs of deployments."""

    part: str = Field(description="model, software, hardware, topology, options, variables, modules, network, load or verdict")
    name: str
    a: str | None = Field(description="null: not set or not recorded")
    b: str | None = Field(description="null: not set or not recorded")
    pairs: tuple[str, ...] = Field(description="the pairs of deployments; empty: all of them")


class ComparedMetric(Strict):
    """A metric of one load point on both sides: medians over the accepted repetitions."""

    metric: str = Field(description="its name in --gate")
    part: Part
    a: float
    b: float
    ratio: float | None = Field(description="b divided by a; null: a is 0")
    low: float | None = Field(default=None, description="low end of the 95 % interval of the ratio; null: no interval")
    high: float | None = Field(default=None, description="high end of this interval")
    verdict: Verdict = Field(description="whether B is better than A")
    why: str | None = Field(default=None, description="why servemark cannot tell")


class ComparedPoint(Strict):
    """A load point that both sides have."""

    pair: str = Field(description="the pair of deployments")
    workload: str = Field(description="its name on side A")
    load: str
    repetitions_a: int = Field(description="accepted repetitions")
    repetitions_b: int = Field(description="accepted repetitions")
    suspect_a: bool = Field(default=False, description="at least one repetition is SUSPECT")
    suspect_b: bool = Field(default=False, description="at least one repetition is SUSPECT")
    metrics: tuple[ComparedMetric, ...]


class OneSided(Strict):
    """A load point with results on one side only, or whose deployment cannot be compared."""

    side: Literal["A", "B"]
    deployment: str
    workload: str
    load: str
    why: str


class GateResult(Strict):
    """The decision of one limit of --gate over all common load points."""

    metric: str
    percent: float = Field(description="largest accepted change of B against A, with its sign")
    exceeded: tuple[int, ...] = Field(description="positions in `points` where the whole interval is beyond the limit")
    undecided: int = Field(description="points without an interval of this metric")
    points: int

    @property
    def state(self) -> Literal["failed", "undecided", "passed"]:
        """Return the decision. A limit passes only if each point has an interval."""
        return "failed" if self.exceeded else "undecided" if self.undecided else "passed"


class Comparison(Record):
    """Two runs, or a run and published numbers, point by point. servemark compare writes it."""

    KIND = "comparison"
    a: ComparedSide
    b: ComparedSide
    differences: tuple[Difference, ...]
    points: tuple[ComparedPoint, ...]
    one_sided: tuple[OneSided, ...]
    gates: tuple[GateResult, ...] = ()

    @property
    def suspect(self) -> int:
        """Return the number of load points with a SUSPECT repetition on a side."""
        return sum(point.suspect_a or point.suspect_b for point in self.points)
