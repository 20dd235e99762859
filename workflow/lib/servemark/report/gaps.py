"""What the run was asked for and has no figure for: each gap once, with its cause and the points it cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from servemark.records import Failure
from servemark.report import words
from servemark.report.data import PageData


@dataclass
class Gap:
    """``stage`` is the rule that failed; ``points`` are the load points without a figure because of it."""

    deployment: str
    stage: str
    reason: str
    detail: str
    log: str | None = None
    quote: tuple[str, ...] = ()
    remedy: str | None = None
    points: list[str] = field(default_factory=list)


def gaps(data: PageData) -> list[Gap]:
    """All gaps of the run, by deployment.

    A failure that travelled through the records of several stages and points is one gap. A planned point without a
    record belongs to the failure of its deployment, or is a gap of its own where none is recorded.
    """
    return [gap for deployment in data.deployments for gap in _of(data, deployment)]


def _of(data: PageData, deployment: str) -> Iterator[Gap]:
    found: dict[tuple[str, str, str], Gap] = {}
    for record in (data.startups.get(deployment), data.stopped.get(deployment)):
        if record is not None and record.failure is not None:
            _gap(found, deployment, record.failure)
    mine = [item for item in data.measurements if item.deployment == deployment]
    for item in mine:
        if item.verdict == "INVALID":
            failure = item.failure or Failure(
                stage="measure",
                reason=" ".join(reason.code for reason in item.reasons) or "no_reason_recorded",
                detail="; ".join(reason.detail for reason in item.reasons) or "The record gives no reason.",
                log=f"results/{data.run}/logs/measure/{deployment}/{item.point}.log",
                remedy="Run snakemake again: a point that is INVALID for the first time is measured again. To measure a hole "
                f"again, delete results/{data.run}/deployments/{deployment}/points/{item.point}.json and "
                f"results/{data.run}/rejected/{deployment}/{item.point}.*",
            )
            _gap(found, deployment, failure).points.append(words.point(item))
        elif item.failure is not None:
            _gap(found, deployment, item.failure)
    plan = data.plans.get(deployment)
    measured = {item.point for item in mine}
    missing = [words.point(point) for point in plan.points if point.name not in measured] if plan else []
    if missing or (plan is None and not mine and not found):
        if not found:
            what = f"{words.plural(len(missing), 'planned point')} without a record" if plan else "no plan was recorded"
            failure = Failure(
                stage="measure" if plan else "plan_deployment",
                reason="not_measured" if plan else "not_planned",
                detail=f"The run ended before this deployment was measured: {what}.",
                remedy="Run snakemake again: it makes what is missing.",
            )
            _gap(found, deployment, failure)
        next(iter(found.values())).points.extend(missing)
    yield from found.values()


def _gap(found: dict[tuple[str, str, str], Gap], deployment: str, failure: Failure) -> Gap:
    key = (failure.stage, failure.reason, failure.detail)
    return found.setdefault(key, Gap(deployment=deployment, **failure.model_dump()))
