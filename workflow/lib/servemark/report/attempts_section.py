"""Every start of every deployment: when, where and how it ended."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from servemark import supervisor
from servemark.deployment import attempts
from servemark.measurement.reasons import OUTSIDE
from servemark.records import Failure

Outcome = Literal["ended as planned", "failed", "broken off", "not known"]


@dataclass(frozen=True)
class Attempt:
    """One start. ``how`` explains ``outcome`` in a few words; times are UTC, None where nothing was started or ended."""

    deployment: str
    number: str
    outcome: Outcome
    how: str
    started_at: str | None = None
    ended_at: str | None = None
    nodes: tuple[str, ...] = ()
    failure: Failure | None = None


def read(deployment: Path) -> list[Attempt]:
    """Return the attempts in a deployment's folder, oldest first. One whose files cannot be read hides no other."""
    found = []
    for folder in attempts.every(deployment):
        try:
            found.append(_read(deployment.name, folder))
        except (OSError, ValueError, RecursionError) as error:
            found.append(Attempt(deployment.name, folder.name, "not known", f"its files cannot be read: {type(error).__name__}"))
    return found


def _read(deployment: str, folder: Path) -> Attempt:
    state, daemons, failure = supervisor.read_state(folder), supervisor.read_daemons(folder), attempts.noted_failure(folder)
    surveyed = sorted(path.stem for path in (folder / "survey" / "look").glob("*.json"))
    return Attempt(
        deployment,
        folder.name,
        *_ending(state, failure),
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
        return "broken off", "the run ended while it lived: interrupted, killed or lost"
    if why.startswith("daemon_ended:"):
        return "failed", f"{why.partition(':')[2]} ended by itself"
    if why:
        return "broken off", why
    return "not known", f"last state of its supervisor: {state.state}" if state else "its supervisor recorded no state"
