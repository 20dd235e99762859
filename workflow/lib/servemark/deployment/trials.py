"""Trials of a search: their names, the next one, and those that the ledger has. Imports no client, so the main process loads it fast."""

from collections.abc import Sequence

from servemark.config.model import Config
from servemark.config.searches import targets, trial
from servemark.deployment.recall import recalled
from servemark.measurement import key, search
from servemark.measurement.ledger import Ledger
from servemark.measurement.search import State, Trial
from servemark.records import Plan, PlannedPoint, PlannedSearch


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
