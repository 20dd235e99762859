"""Read the attempts of a deployment from its folder, and how each ended."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from servemark import supervisor
from servemark.deployment.attempts import every, noted_failure
from servemark.measurement.reasons import OUTSIDE
from servemark.records import Failure

Outcome = Literal["ended as planned", "failed", "interrupted", "unknown"]


@dataclass(frozen=True)
class Attempt:
    """One start of a deployment. ``how`` explains ``outcome`` in a few words. Times are UTC, or None without a start or an end.

    ``id`` is None for an attempt of an older version, and for one whose state is missing.
    """

    deployment: str
    number: str
    outcome: Outcome
    how: str
    started_at: str | None = None
    ended_at: str | None = None
    nodes: tuple[str, ...] = ()
    failure: Failure | None = None
    id: str | None = None


def read(deployment: Path) -> list[Attempt]:
    """Return the attempts in a deployment's folder, oldest first."""
    return [_attempt(deployment.name, folder) for folder in every(deployment)]


def _attempt(deployment: str, folder: Path) -> Attempt:
    """Return one attempt; if its files cannot be read, an attempt with outcome "unknown"."""
    try:
        state, daemons, failure = supervisor.read_state(folder), supervisor.read_daemons(folder), noted_failure(folder)
        surveyed = sorted(path.stem for path in (folder / "survey" / "look").glob("*.json"))
        return Attempt(
            deployment,
            folder.name,
            *_ending(state, failure),
            started_at=min((daemon.started_at for daemon in daemons if daemon.started_at), default=None),
            ended_at=state.ended_at if state else None,
            nodes=tuple(surveyed or dict.fromkeys(daemon.node for daemon in daemons if daemon.node)),
            failure=failure,
            id=state.attempt_id if state else None,
        )
    except (OSError, ValueError, RecursionError) as error:
        return Attempt(deployment, folder.name, "unknown", f"its files cannot be read: {type(error).__name__}")


def _ending(state: supervisor.SupervisorState | None, failure: Failure | None) -> tuple[Outcome, str]:
    if failure:
        return "interrupted" if failure.reason in OUTSIDE else "failed", f"{failure.stage}: {failure.reason}"
    if state is None or not state.why:
        return "unknown", f"last state of its supervisor: {state.state}" if state else "its supervisor recorded no state"
    if state.why == "stop_requested":
        return "ended as planned", "stopped after its last load point"
    if state.why == "lifeline_ended":
        return "interrupted", "the run was interrupted or killed, or its node was lost"
    kind, _, process = state.why.partition(":")
    return ("failed", f"{process} exited") if kind == "daemon_ended" else ("interrupted", state.why)
