"""Every start of every deployment: when, where, how it ended, and what was measured in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal, Protocol

from servemark import supervisor
from servemark.deployment import attempts
from servemark.measurement.reasons import OUTSIDE
from servemark.records import Failure, Measurement

Outcome = Literal["ended as planned", "failed", "broken off", "not known"]


class Told(Protocol):
    """A failure that the page tells of, and its place there."""

    deployment: str
    anchor: str

    @property
    def failure(self) -> Failure:
        """The failure of the record."""


_LIFELINE = "the run ended while it lived: interrupted, killed or lost"


@dataclass(frozen=True)
class Attempt:
    """One start. ``how`` says more than ``outcome`` in a few words; times are UTC, None where nothing was started or ended."""

    deployment: str
    number: str
    outcome: Outcome
    how: str
    started_at: str | None = None
    ended_at: str | None = None
    nodes: tuple[str, ...] = ()
    failure: Failure | None = None


def read(deployment: Path) -> list[Attempt]:
    """Return the attempts in a deployment's folder, oldest first. One whose files cannot be read says so and hides no other."""
    found = []
    for folder in attempts.every(deployment):
        try:
            found.append(_read(deployment.name, folder))
        except (OSError, ValueError, RecursionError) as error:
            why = f"its files cannot be read: {type(error).__name__}"
            found.append(Attempt(deployment.name, folder.name, "not known", why))
    return found


def _read(deployment: str, folder: Path) -> Attempt:
    state, daemons, failure = (
        supervisor.read_state(folder),
        supervisor.read_daemons(folder),
        attempts.noted_failure(folder),
    )
    surveyed = sorted(path.stem for path in (folder / "survey" / "look").glob("*.json"))
    outcome, how = _ending(state, failure)
    return Attempt(
        deployment=deployment,
        number=folder.name,
        outcome=outcome,
        how=how,
        started_at=min((daemon.started_at for daemon in daemons if daemon.started_at), default=None),
        ended_at=state.ended_at if state else None,
        nodes=tuple(surveyed or dict.fromkeys(daemon.node for daemon in daemons if daemon.node)),
        failure=failure,
    )


def _ending(state: supervisor.KeeperState | None, failure: Failure | None) -> tuple[Outcome, str]:
    if failure:
        return "broken off" if failure.reason in OUTSIDE else "failed", f"{failure.stage}: {failure.reason}"
    why = (state.why if state else None) or ""
    if why == "stop_requested":
        return "ended as planned", "stopped after its last point"
    if why == "lifeline_ended":
        return "broken off", _LIFELINE
    if why.startswith("daemon_ended:"):
        return "failed", f"{why.partition(':')[2]} ended by itself"
    if why:
        return "broken off", why
    return "not known", f"its keeper last said: {state.state}" if state else "its keeper said nothing"


def rows(
    found: Iterable[Attempt],
    measurements: Iterable[Measurement],
    rejected: Iterable[Measurement],
    failures: Iterable[Told],
) -> list[dict[str, Any]]:
    """Return one row an attempt: itself, how many measurements of each verdict were made in it, and where the page tells of its failure."""
    made = Counter(
        (item.deployment, PurePosixPath(item.attempt).name, item.verdict)
        for item in (*measurements, *rejected)
        # Without a command line nothing was measured: the point only carries an earlier stage's failure.
        if item.attempt and item.client_argv
    )
    anchors = _anchors(failures)
    return [
        {
            "attempt": attempt,
            "counts": {
                verdict: count
                for verdict in ("VALID", "SUSPECT", "INVALID")
                if (count := made[attempt.deployment, attempt.number, verdict])
            },
            "anchor": anchors.get(_identity(attempt.deployment, attempt.failure)) if attempt.failure else None,
        }
        for attempt in found
    ]


def rejected_rows(rejected: Iterable[Measurement], failures: Iterable[Told]) -> list[dict[str, Any]]:
    """Return one row a rejected measurement, and where the page tells of the failure that it carries."""
    anchors = _anchors(failures)
    return [
        {"record": item, "anchor": anchors.get(_identity(item.deployment, item.failure)) if item.failure else None} for item in rejected
    ]


def _anchors(failures: Iterable[Told]) -> dict[tuple[str, ...], str]:
    return {_identity(told.deployment, told.failure): told.anchor for told in failures}


def unexplained(found: Iterable[Attempt], failures: Iterable[Told]) -> list[Attempt]:
    """Return failed attempts whose failure is none of ``failures``: a later attempt made them good. Of equal ones the first."""
    known = {_identity(told.deployment, told.failure) for told in failures}
    missing: dict[tuple[str, ...], Attempt] = {}
    for attempt in found:
        if attempt.failure and (identity := _identity(attempt.deployment, attempt.failure)) not in known:
            missing.setdefault(identity, attempt)
    return list(missing.values())


def _identity(deployment: str, failure: Failure) -> tuple[str, ...]:
    return deployment, failure.stage, failure.reason, failure.detail
