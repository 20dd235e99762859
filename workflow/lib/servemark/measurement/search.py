"""Search for the highest load that meets its latency targets: bisection that repeats loads near the boundary.

A trial is one measurement of one load. :func:`state` depends only on the trials so far. So an interrupted search continues with the same
loads. docs/explanation/load-search.md gives the reasons for the rules and how often the bracket is right.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from servemark.measurement import repetitions, slo
from servemark.measurement.intervals import LEAST, Interval
from servemark.measurement.slo import Targets
from servemark.records import Measurement, PlannedPoint, PlannedSearch, Search, SearchTrial

Decision = Literal["meets", "misses", "open"]
Verdict = Literal["VALID", "SUSPECT", "INVALID"]
Ending = Literal["narrow", "trials_used", "from_misses", "to_meets", "invalid"]

REPEATS = LEAST
"""The most VALID measurements of one load: as many as an interval needs. SUSPECT ones have the same limit of their own."""
MOST_OF_ONE_LOAD = 2 * REPEATS - 1
"""The most measurements of one load: the last one reaches the limit of its verdict."""
CLEAR = 1.25
"""A first measurement decides if its latency is above the target times this factor, or below the target divided by it. Repetitions that
differ by more than ``max_repetition_spread`` (10 %) are SUSPECT, so noise of two standard deviations stays within it."""
NARROW = 1.02
"""A bracket whose ends differ by this factor or less is not divided: noise would decide."""
OVERLOADED = frozenset({"client_timeout", "requests_failed"})
"""Reasons that make a measurement INVALID because the load is too high for the server."""
_RATE_DIGITS = 3


@dataclass(frozen=True)
class Outcome:
    """What one trial shows. ``ratio``: the latency over its target, the largest of all targets; at most 1 if the load meets them.

    ``ratio`` is infinite if the load is too high for the server, and None if there are too few requests. ``alone`` is the verdict before
    the trials of the load were compared. It decides which of the two limits of trials counts this one.
    """

    load: float
    verdict: Verdict
    ratio: float | None
    alone: Verdict = "VALID"

    @classmethod
    def of(cls, record: Measurement, load: float, ratio: float | None, alone: Verdict = "VALID") -> "Outcome":
        """Return the outcome of a measurement at this load. ``ratio``: its latency over its target."""
        codes = {reason.code for reason in record.reasons if reason.severity == "INVALID"}
        if record.verdict == "INVALID" and codes and codes <= OVERLOADED and record.failure is None:
            return cls(load, "VALID", math.inf, alone)
        return cls(load, record.verdict, ratio, alone)


@dataclass(frozen=True)
class State:
    """Where a search stands after its trials.

    Attributes:
        meets, misses: the bracket: the highest load that is decided to meet the targets, and the lowest one that is decided to miss them.
        following: load of the next trial, and its repetition, from 1; None at the end.
        ended: why the search has ended.
    """

    meets: float | None
    misses: float | None
    following: tuple[float, int] | None = None
    ended: Ending | None = None


def decision(outcomes: Sequence[Outcome]) -> Decision | None:
    """Return what the trials of one load decide; None if it needs another one.

    SUSPECT trials decide nothing. ``open`` means that the load is too close to the boundary to tell.
    """
    valid = [one for one in outcomes if one.verdict == "VALID"]
    # Another measurement of this load has too few requests, too.
    if any(one.ratio is None for one in valid):
        return "open"
    ratios = [one.ratio for one in valid if one.ratio is not None]
    if any(math.isinf(ratio) for ratio in ratios):
        return "misses"
    if len(ratios) == 1 and not 1 / CLEAR <= ratios[0] <= CLEAR:
        return "meets" if ratios[0] < 1 else "misses"
    if len(ratios) >= LEAST and min(ratios) > 0:
        interval = Interval.of(ratios)
        if interval.excludes_1:
            return "meets" if interval.high < 1 else "misses"
    suspect = sum(one.alone == "SUSPECT" for one in outcomes)
    return "open" if max(suspect, len(outcomes) - suspect) >= REPEATS else None


def state(asked: PlannedSearch, trials: Sequence[Outcome]) -> State:
    """Return bracket and next trial of a search after these trials."""
    by_load: dict[float, list[Outcome]] = {}
    for one in trials:
        by_load.setdefault(one.load, []).append(one)
    decided = {load: decision(outcomes) for load, outcomes in by_load.items()}
    meets = max((load for load, found in decided.items() if found == "meets"), default=None)
    misses = min((load for load, found in decided.items() if found == "misses"), default=None)
    end = _ending(asked, trials, decided)
    if end:
        return State(meets, misses, ended=end)
    load = next((load for load, found in decided.items() if found is None), None) or _next_load(asked, decided, meets, misses)
    if load is None:
        return State(meets, misses, ended="narrow")
    return State(meets, misses, (load, len(by_load.get(load, ())) + 1))


def _ending(asked: PlannedSearch, trials: Sequence[Outcome], decided: dict[float, Decision | None]) -> Ending | None:
    if any(one.verdict == "INVALID" for one in trials):
        return "invalid"
    if decided.get(asked.low) == "misses":
        return "from_misses"
    if decided.get(asked.high) == "meets":
        return "to_meets"
    return "trials_used" if len(trials) >= asked.trials else None


def _next_load(asked: PlannedSearch, decided: dict[float, Decision | None], meets: float | None, misses: float | None) -> float | None:
    """Return the next new load: both ends of the range, then the middle of the wider part of the bracket; None if all parts are narrow.

    Open loads divide the bracket. Only the parts at its ends can still move them.
    """
    for load in (asked.low, asked.high):
        if load not in decided:
            return load
    low, high = meets or asked.low, misses or asked.high
    inside = sorted(load for load, found in decided.items() if found == "open" and low < load < high)
    parts = [(low, inside[0]), (inside[-1], high)] if inside else [(low, high)]
    for begin, end in sorted(parts, key=lambda part: part[1] / part[0], reverse=True):
        if end / begin > NARROW and (middle := _middle(begin, end, whole=asked.variable == "concurrency")):
            return middle
    return None


def _middle(low: float, high: float, *, whole: bool) -> float | None:
    """Return the geometric mean as a whole number or with three digits; None if no such number is between the ends."""
    middle = math.sqrt(low * high)
    found = float(min(max(round(middle), low + 1), high - 1)) if whole else float(f"{middle:.{_RATE_DIGITS}g}")
    return found if low < found < high else None


@dataclass(frozen=True)
class Trial:
    """A measured load point of a search. ``record``: without a comparison of repetitions; ``ratio``: as of ``Outcome``."""

    point: PlannedPoint
    record: Measurement
    ratio: float | None

    @classmethod
    def of(cls, point: PlannedPoint, record: Measurement, raw: Path, wanted: Targets) -> "Trial":
        """Return the trial of a measurement with its per-request results."""
        found = slo.attainments({record.load.workload: wanted}, [(record, raw)])
        reached = found.get((record.deployment, record.load.name))
        return cls(point, record, reached.ratio if reached else None)

    @classmethod
    def stated(cls, one: SearchTrial, record: Measurement) -> "Trial":
        """Return the trial of a measurement with the ratio in the record of its search. JSON has no infinity: it is null, and not met."""
        return cls(one.point, record, math.inf if one.ratio is None and one.met is False else one.ratio)

    @property
    def load(self) -> float:
        """The load that is searched."""
        return self.record.load.request_rate or self.record.load.concurrency or 0


def outcomes(trials: Sequence[Trial], most_spread: float | None, archive_format: int | None = None) -> list[Outcome]:
    """Return the outcome of each trial. ``most_spread``, ``archive_format``: as of ``repetitions.judged``."""
    judged = repetitions.judged([trial.record for trial in trials], most_spread, archive_format)
    # Before this format, VALID and SUSPECT trials had one limit.
    one_limit = archive_format is not None and archive_format < repetitions.VALID_ALONE
    pairs = zip(judged, trials, strict=True)
    return [Outcome.of(record, trial.load, trial.ratio, "VALID" if one_limit else trial.record.verdict) for record, trial in pairs]


def traced(
    deployment: str, asked: PlannedSearch, wanted: Targets, trials: Sequence[Trial], found: Sequence[Outcome], *, compared: bool = True
) -> Search:
    """Return the record of an ended search.

    Args:
        found: the outcome of each trial.
        compared: state the verdicts after the comparison of trials. Archives before format 6 state those before it.
    """
    rows = []
    for number, (trial, outcome) in enumerate(zip(trials, found, strict=True), 1):
        after = state(asked, found[:number])
        ratio = outcome.ratio if outcome.ratio is not None and math.isfinite(outcome.ratio) else None
        rows.append(
            SearchTrial(
                point=trial.point,
                value=trial.load,
                verdict="SUSPECT" if compared and outcome.verdict == "SUSPECT" else trial.record.verdict,
                ratio=ratio,
                met=None if outcome.ratio is None else outcome.ratio <= 1,
                decision=decision([one for one in found[:number] if one.load == trial.load]),
                meets=after.meets,
                misses=after.misses,
            )
        )
    last = state(asked, found)
    return Search(
        deployment=deployment,
        asked=asked,
        targets={latency: dict(limits) for latency, limits in wanted.items()},
        trials=tuple(rows),
        meets=last.meets,
        misses=last.misses,
        ended=last.ended or "trials_used",
    )


def undecided(found: Search) -> bool:
    """Return whether the trials decided nothing: no load meets the targets for certain, and none misses them."""
    return found.meets is None and found.misses is None


def words(found: Search) -> str:
    """Return the result of a search as part of a sentence, such as ``meets at 96, misses at 128``."""
    asked = found.asked
    meets, misses = (None if load is None else f"{load:g}" for load in (found.meets, found.misses))
    if found.ended == "from_misses":
        return f"misses at {asked.low:g}, the lowest load"
    if found.ended == "to_meets":
        return f"meets at {asked.high:g}, the highest load"
    if undecided(found):
        suspect = sum(trial.verdict == "SUSPECT" for trial in found.trials)
        parts = ["no load is decided", *([f"{suspect} of {len(found.trials)} trials are SUSPECT"] if suspect else [])]
    else:
        parts = [
            f"meets at {meets}" if meets else "no load is known to meet",
            f"misses at {misses}" if misses else "no load is known to miss",
        ]
    return ", ".join([*parts, *_between(found), *(["a trial is INVALID"] if found.ended == "invalid" else [])])


def _between(found: Search) -> list[str]:
    """Return a part of a sentence for each load inside the bracket that its trials do not decide. It may still be the load to run."""
    if undecided(found):
        return []
    by_load: dict[float, list[SearchTrial]] = {}
    for trial in found.trials:
        by_load.setdefault(trial.value, []).append(trial)
    low, high = found.meets or 0.0, found.misses or math.inf
    parts = []
    for load, trials in sorted(by_load.items()):
        judged = [trial.met for trial in trials if trial.verdict == "VALID" and trial.met is not None]
        if low < load < high and judged and trials[-1].decision in (None, "open"):
            parts.append(f"not decided at {load:g} ({sum(judged)} of {len(judged)} VALID trials met the targets)")
    return parts
