"""The state of a run, read from the lines of ``progress.jsonl``: finished points, active stages, an estimate of the time left."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# After one of these, nothing of a deployment is active.
LAST_STAGES = frozenset({"stop_deployment", "account_allocation", "hold_endpoint"})
# Stages whose subject is no deployment, although it may have the name of one.
OTHER_SUBJECTS = frozenset({"stage_weights", "build_environment", "check_environment"})


@dataclass
class Row:
    """One active stage.

    Args:
        since: when the stage, or the point that it measures, began; seconds since 1970.
        heard: time of its last line.
        point: state of the load point that is measured now.
    """

    subject: str
    stage: str
    text: str
    since: float
    heard: float
    point: Mapping[str, Any] | None = None


@dataclass
class RunState:
    """Updated line by line.

    Args:
        points: names of the load points of each deployment.
        finished: deployment and point, of points that need no measurement any more; at first those of earlier runs.
        at_once: deployments are measured at the same time (on a cluster), not one after another.
    """

    points: Mapping[str, tuple[str, ...]]
    finished: set[tuple[str, str]] = field(default_factory=set)
    at_once: bool = False
    from_ledger: int = 0
    rows: dict[str, Row] = field(default_factory=dict)
    # Seconds that the points of a load took, by the point's name without the repetition; those of starts until ready.
    _seconds: dict[str, list[float]] = field(default_factory=dict)
    _starts: list[float] = field(default_factory=list)
    _started: dict[str, float] = field(default_factory=dict)
    _ready: set[str] = field(default_factory=set)
    _queued: set[str] = field(default_factory=set)

    @property
    def total(self) -> int:
        """Number of load points of the run."""
        return sum(map(len, self.points.values()))

    def update(self, line: Mapping[str, Any]) -> None:
        """Take in one line of ``progress.jsonl``."""
        stage, when = str(line["stage"]), float(line["time"])
        subject = str(line["subject"] or stage)
        key = f"{stage} {subject}" if stage in OTHER_SUBJECTS else subject
        point = line.get("point")
        if line.get("ended"):
            self._end(key, subject, stage, when)
            return
        row = self.rows.get(key)
        measured_now = point["name"] if point else None
        measured_before = row.point["name"] if row and row.point else None
        same = row is not None and row.stage == stage and measured_now == measured_before
        self.rows[key] = Row(subject, stage, str(line["text"]), row.since if row and same else when, when, point)
        # A start that waits for the machine has not begun.
        queued, was_queued = bool(line.get("queued")), subject in self._queued
        if stage == "start_cluster" and (not same or queued or was_queued):
            self._started[subject] = when
            self._ready.discard(subject)
            (self._queued.add if queued else self._queued.discard)(subject)
        if point:
            self._point(subject, point)

    def remove(self, deployment: str) -> None:
        """Remove the row of a deployment whose job has ended."""
        self.rows.pop(deployment, None)

    def _end(self, key: str, subject: str, stage: str, when: float) -> None:
        if stage == "await_ready" and subject in self._started:
            self._starts.append(when - self._started.pop(subject))
            self._ready.add(subject)
        row = self.rows.get(key)
        if row is None or row.stage != stage:
            return
        if key not in self.points or stage in LAST_STAGES:
            del self.rows[key]
        else:
            self.rows[key] = Row(subject, stage, "finished", row.since, when)

    def _point(self, deployment: str, point: Mapping[str, Any]) -> None:
        key = (deployment, str(point["name"]))
        if point["phase"] != "finished":
            self.finished.discard(key)
            return
        self.finished.add(key)
        # An ended search needs no further trials.
        self.finished |= {(deployment, str(name)) for name in point.get("unused", ())}
        self.from_ledger += bool(point.get("from_ledger"))
        if "seconds" in point:
            self._seconds.setdefault(_load(key[1]), []).append(float(point["seconds"]))

    def left_s(self, now: float) -> float | None:
        """Return an estimate of the seconds until the last point is finished; None before the first measured point.

        A point takes as long as the points of the same load took, on any deployment; without one, as long as the mean of all.
        """
        every = [seconds for found in self._seconds.values() for seconds in found]
        if not every:
            return None
        start = _mean(self._starts) if self._starts else 0.0
        parts = []
        for deployment, names in self.points.items():
            expected = [_mean(self._seconds.get(_load(name), every)) for name in names if (deployment, name) not in self.finished]
            if not expected:
                continue
            row = self.rows.get(deployment)
            current = min(now - row.since, expected[0]) if row and row.point and row.point["phase"] != "finished" else 0.0
            begun = now - self._started[deployment] if deployment in self._started else 0.0
            parts.append(sum(expected) - current + (0.0 if deployment in self._ready else max(0.0, start - begun)))
        return max(parts, default=0.0) if self.at_once else sum(parts)


def _load(point: str) -> str:
    return point.rpartition("-r")[0]


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
