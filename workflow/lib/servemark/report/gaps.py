"""What the run was asked for and has no figure for: each gap once, with its cause and the points it cost; and all failures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from servemark.measurement.reasons import TABLE
from servemark.records import Failure, Measurement
from servemark.report import attempts_section, formatting
from servemark.report.data import PageData


@dataclass
class Gap:
    """``stage`` is the rule that failed; ``points`` are the load points without a figure because of it.

    ``anchor`` is its place in the page, ``attempt`` the number of the attempt whose failure a later one made good.
    """

    deployment: str
    stage: str
    reason: str
    detail: str
    log: str | None = None
    quote: tuple[str, ...] = ()
    remedy: str | None = None
    points: list[str] = field(default_factory=list)
    anchor: str = ""
    attempt: str | None = None

    @property
    def failure(self) -> Failure:
        """The failure alone."""
        return Failure(
            stage=self.stage,
            reason=self.reason,
            detail=self.detail,
            log=self.log,
            quote=self.quote,
            remedy=self.remedy,
        )


def gaps(data: PageData) -> list[Gap]:
    """Return all gaps of the run, by deployment.

    A failure that travelled through the records of several stages and points is one gap. A planned point without a
    record belongs to the failure of its deployment, or is a gap of its own where none is recorded.
    """
    measured: dict[str, list[Measurement]] = {}
    for item in data.measurements:
        measured.setdefault(item.deployment, []).append(item)
    found = [gap for deployment in data.deployments for gap in _of(data, deployment, measured.get(deployment, []))]
    for number, gap in enumerate(found, 1):
        gap.anchor = f"gap-{number}"
    return found


def made_good(data: PageData, found: Sequence[Gap]) -> list[Gap]:
    """Return failures of attempts that are no gap, because a later attempt did what they had to leave undone."""
    failed = attempts_section.unexplained(data.attempts, found)
    return [
        Gap(deployment=item.deployment, **failure.model_dump(), anchor=f"attempt-{number}", attempt=item.number)
        for number, item in enumerate(failed, 1)
        if (failure := item.failure)
    ]


def failures(data: PageData) -> list[Failure]:
    """Return every failure that the page tells of."""
    found = gaps(data)
    return [gap.failure for gap in (*found, *made_good(data, found))]


def _of(data: PageData, deployment: str, mine: Sequence[Measurement]) -> Iterator[Gap]:
    found: dict[tuple[str, str, str], Gap] = {}
    for record in (data.startups.get(deployment), data.stopped.get(deployment)):
        if record is not None and record.failure is not None:
            _gap(found, deployment, record.failure)
    for item in mine:
        if item.verdict == "INVALID":
            failure = item.failure or Failure(
                stage="measure",
                reason=" ".join(reason.code for reason in item.reasons) or "no_reason_recorded",
                detail="; ".join(reason.detail for reason in item.reasons) or "The record gives no reason.",
                log=f"results/{data.run}/logs/measure/{deployment}/{item.load.name}.log",
                remedy=_remedy(data.run, item),
            )
            _gap(found, deployment, failure).points.append(formatting.point(item.load))
        elif item.failure is not None:
            _gap(found, deployment, item.failure)
    plan = data.plans.get(deployment)
    measured = {item.load.name for item in mine}
    missing = [formatting.point(load) for load in plan.loads if load.name not in measured] if plan else []
    if missing or (plan is None and not mine and not found):
        if not found:
            what = f"{formatting.plural(len(missing), 'planned point')} without a record" if plan else "no plan was recorded"
            failure = Failure(
                stage="measure" if plan else "plan_deployment",
                reason="not_measured" if plan else "not_planned",
                detail=f"The run ended before this deployment was measured: {what}.",
                remedy="Run snakemake again: it makes what is missing.",
            )
            _gap(found, deployment, failure)
        next(iter(found.values())).points.extend(missing)
    yield from found.values()


def _remedy(run: str, item: Measurement) -> str:
    known = (TABLE[reason.code].remedy for reason in item.reasons if reason.severity == "INVALID" and reason.code in TABLE)
    return " ".join(
        (
            *dict.fromkeys(filter(None, known)),
            "Run snakemake again: a point that is INVALID for the first time is measured again. To measure a hole again, delete "
            f"results/{run}/deployments/{item.deployment}/points/{item.load.name}.json and "
            f"results/{run}/rejected/{item.deployment}/{item.load.name}.*",
        )
    )


def _gap(found: dict[tuple[str, str, str], Gap], deployment: str, failure: Failure) -> Gap:
    key = (failure.stage, failure.reason, failure.detail)
    return found.setdefault(key, Gap(deployment=deployment, **failure.model_dump()))
