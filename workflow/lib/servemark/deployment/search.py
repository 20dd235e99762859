"""search: measure the trials of a search one after another, from the ledger or with a client, until it ends."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from servemark.config.searches import targets
from servemark.deployment.context import StageContext
from servemark.deployment.measure import Measuring
from servemark.deployment.trials import following, trial_names
from servemark.measurement import search
from servemark.measurement.ledger import Ledger
from servemark.measurement.search import Trial
from servemark.records import Search


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
        found = search.traced(plan.deployment, asked, wanted, trials, search.outcomes(trials, config.verdict.max_repetition_spread))
        ended: dict[str, Any] = {"phase": "finished", "name": trial_names(asked)[len(trials) - 1], "unused": list(names)}
        self.here.progress.say(f"{workload}: search: {search.words(found)}", point=ended)
        return found
