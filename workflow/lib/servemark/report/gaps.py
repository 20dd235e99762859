"""Find the gaps of a run: planned load points without a result, each with its cause. Also list all failures."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from servemark.measurement.reasons import TABLE
from servemark.records import Failure, Measurement
from servemark.report import formatting
from servemark.report.gather import RunRecords

_Key = tuple[str, ...]


@dataclass
class Gap:
    """A failure and the load points without a result because of it. ``attempt`` is set if a later attempt succeeded."""

    deployment: str
    failure: Failure
    points: list[str] = field(default_factory=list)
    anchor: str = ""
    attempt: str | None = None


def gaps(data: RunRecords) -> list[Gap]:
    """Return all gaps of the run, by deployment.

    One failure in the records of several stages and load points is one gap. A planned load point without a record belongs to the failure
    of its deployment, or is a gap of its own if the deployment has no failure.
    """
    measured: dict[str, list[Measurement]] = {}
    for item in data.measurements:
        measured.setdefault(item.deployment, []).append(item)
    found = [gap for deployment in data.deployments for gap in _of(data, deployment, measured.get(deployment, []))]
    for number, gap in enumerate(found, 1):
        gap.anchor = f"gap-{number}"
    return found


def made_good(data: RunRecords, found: Iterable[Gap]) -> list[Gap]:
    """Return failures of attempts after which a later attempt succeeded, each once."""
    known = {_key(gap.deployment, gap.failure) for gap in found}
    later: dict[_Key, Gap] = {}
    for attempt in data.attempts:
        if attempt.failure and (key := _key(attempt.deployment, attempt.failure)) not in known:
            later.setdefault(key, Gap(attempt.deployment, attempt.failure, anchor=f"attempt-{len(later) + 1}", attempt=attempt.number))
    return list(later.values())


def attempt_rows(data: RunRecords, found: Iterable[Gap]) -> list[dict[str, Any]]:
    """Return one row per attempt: its measurements of each verdict, and the anchor of its failure."""
    ids = {(item.deployment, item.number): item.id for item in data.attempts}
    made: Counter[_Key] = Counter()
    for item in (*data.measurements, *data.rejected):
        place = (item.deployment, PurePosixPath(item.attempt or "").name)
        # Without a command line of the client, the record only repeats the failure of an earlier stage.
        # Points of another run or machine, from the ledger, may have an attempt with the same number.
        if item.client_argv and item.measured_in(ids.get(place)):
            made[*place, item.verdict] += 1
    anchors = _anchors(found)
    return [
        {
            "attempt": item,
            "counts": {v: count for v in ("VALID", "SUSPECT", "INVALID") if (count := made[item.deployment, item.number, v])},
            "anchor": anchors.get(_key(item.deployment, item.failure)),
        }
        for item in data.attempts
    ]


def rejected_rows(rejected: Iterable[Measurement], found: Iterable[Gap]) -> list[dict[str, Any]]:
    """Return one row per rejected measurement, with the anchor of its failure."""
    anchors = _anchors(found)
    return [{"record": item, "anchor": anchors.get(_key(item.deployment, item.failure))} for item in rejected]


def _key(deployment: str, failure: Failure | None) -> _Key:
    return (deployment, failure.stage, failure.reason, failure.detail) if failure else ()


def _anchors(found: Iterable[Gap]) -> dict[_Key, str]:
    return {_key(gap.deployment, gap.failure): gap.anchor for gap in found}


def _of(data: RunRecords, deployment: str, mine: Sequence[Measurement]) -> Iterator[Gap]:
    found: dict[_Key, Gap] = {}

    def gap(failure: Failure) -> Gap:
        return found.setdefault(_key(deployment, failure), Gap(deployment, failure))

    for record in (data.startups.get(deployment), data.stopped.get(deployment)):
        if record is not None and record.failure is not None:
            gap(record.failure)
    for item in mine:
        if item.verdict == "INVALID":
            gap(item.failure or _objection(data, item)).points.append(formatting.point(item.load))
        elif item.failure is not None:
            gap(item.failure)
    for one in data.accuracy.get(deployment, ()):
        if one.failure is not None:
            gap(one.failure).points.append(f"accuracy check {one.check.name}")
    plan = data.plans.get(deployment)
    measured = {item.load.name for item in mine}
    missing = [formatting.point(load) for load in plan.loads if load.name not in measured] if plan else []
    if missing or (plan is None and not mine and not found):
        if not found:
            what = f"{formatting.plural(len(missing), 'planned point')} without a record" if plan else "the plan is missing"
            stage, reason = ("measure", "not_measured") if plan else ("plan_deployment", "not_planned")
            detail = f"The run ended before servemark measured this deployment: {what}."
            gap(
                Failure(
                    stage=stage, reason=reason, detail=detail, remedy="Rerun the same command: servemark measures only the missing points."
                )
            )
        next(iter(found.values())).points.extend(missing)
    yield from found.values()


def _objection(data: RunRecords, item: Measurement) -> Failure:
    """Return a failure made from the reasons of an INVALID measurement that has none."""
    run, trials = data.run, (trial for search in data.searches.get(item.deployment, ()) for trial in search.trials)
    searched = item.load.name in {trial.point.load.name for trial in trials}
    remedies = (TABLE[reason.code].remedy for reason in item.reasons if reason.severity == "INVALID" and reason.code in TABLE)
    again = (
        "Rerun the same command: servemark measures points again that were INVALID for the first time. To measure a permanent gap "
        f"again, first run `servemark remeasure {run} {item.deployment}/{item.load.name}`."
    )
    return Failure(
        stage="measure",
        reason=" ".join(reason.code for reason in item.reasons) or "no_reason_recorded",
        detail="; ".join(reason.detail for reason in item.reasons) or "The record gives no reason.",
        log=f"results/{run}/logs/{'search' if searched else 'measure'}/{item.deployment}/"
        f"{item.load.workload if searched else item.load.name}.log",
        remedy=" ".join((*dict.fromkeys(filter(None, remedies)), again)),
    )
