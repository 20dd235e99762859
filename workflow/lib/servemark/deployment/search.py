"""search: measure the trials of a search one after another, from the ledger or with a client, until it ends."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from servemark.config.model import Config
from servemark.config.searches import targets, trial
from servemark.deployment.context import StageContext
from servemark.deployment.measure import Measuring
from servemark.deployment.recall import recalled
from servemark.measurement import key, search
from servemark.measurement.ledger import Ledger
from servemark.measurement.search import State, Trial
from servemark.records import Plan, PlannedPoint, PlannedSearch, Search


def trial_names(asked: PlannedSearch) -> list[str]:
    """Return names of the trials for the display of progress, before their loads are known."""
    return [f"{asked.workload}-trial-{number}" for number in range(1, asked.trials + 1)]


def missing_trials(config: Config, plan: Plan, ledger: Ledger) -> int:
    """Return the number of trials that the searches of a plan still need, at most: 0 if the ledger has all of them."""
    return sum(
        asked.trials - len(found) for asked in plan.searches if not _ended(config, asked, found := _known(config, plan, asked, ledger))
    )


def _known(config: Config, plan: Plan, asked: PlannedSearch, ledger: Ledger) -> list[Trial]:
    """Return the first trials of a search that the ledger has."""
    wanted, found = targets(config)[asked.workload], list[Trial]()
    while (point := following(config, plan, asked, found)) and (known := recalled(ledger, point, plan, config)):
        record, stored = known
        found.append(Trial.of(point, record, stored.raw, wanted))
    return found


def _ended(config: Config, asked: PlannedSearch, trials: Sequence[Trial]) -> bool:
    return _state(config, asked, trials).following is None


def _state(config: Config, asked: PlannedSearch, trials: Sequence[Trial]) -> State:
    return search.state(asked, search.outcomes(trials, config.verdict.max_repetition_spread))


def following(config: Config, plan: Plan, asked: PlannedSearch, trials: Sequence[Trial]) -> PlannedPoint | None:
    """Return the load point of the next trial, or None if the search has ended."""
    after = _state(config, asked, trials).following
    if after is None:
        return None
    load = asked.planned(trial(config, plan.deployment, asked.workload, *after))
    return PlannedPoint(load=load, key=key.digest(plan.key_parts, key.point_parts(load), plan.key_format))


@dataclass(frozen=True)
class Searching:
    """Runs the searches of one deployment."""

    here: StageContext
    ledger: Ledger

    def run(self, workload: str, ready_path: Path, points: Path) -> Search:
        """Return the record of a search. Each trial has its files in ``points``, like any other load point.

        A failure of the deployment makes a trial INVALID, which ends the search.
        """
        config, plan = self.here.config, self.here.plan
        asked = next(one for one in plan.searches if one.workload == workload)
        wanted, trials, names = targets(config)[workload], list[Trial](), iter(trial_names(asked))
        measuring = Measuring(self.here, self.ledger)
        while point := following(config, plan, asked, trials):
            raw = points / f"{point.load.name}.requests.json"
            record = measuring.point(point, ready_path, raw, next(names))
            self.here.check()
            record.write(points / f"{point.load.name}.json")
            trials.append(Trial.of(point, record, raw, wanted))
        found = search.traced(plan.deployment, asked, wanted, trials, config.verdict.max_repetition_spread)
        ended: dict[str, Any] = {"phase": "finished", "name": trial_names(asked)[len(trials) - 1], "unused": list(names)}
        self.here.progress.say(f"{workload}: search: {search.words(found)}", point=ended)
        return found
