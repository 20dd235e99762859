"""A small archived run whose only workload searches a load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from builders import archived_run
from servemark.config.expand import expand
from servemark.config.model import Config
from servemark.config.searches import searches, targets, trial
from servemark.measurement import key, search
from servemark.records import Measurement, Plan, PlannedPoint, PlannedSearch, Search

REQUESTS = 20
TRIALS, TARGET_MS = 5, 500


class SearchedRun(archived_run.ArchivedRun):
    """``archived_run.ArchivedRun`` with a search from concurrency 1 to 4 in place of its loads."""

    def _deployment(self, name: str) -> None:
        super()._deployment(name)
        config = expand(Config.model_validate(archived_run.configuration()))
        plan = self.plan(name).model_copy(update={"searches": searches(config, name)})
        plan.write(self.folder / "deployments" / name / "plan.json")
        for asked in plan.searches:
            self._search(config, plan, asked)

    def _search(self, config: Config, plan: Plan, asked: PlannedSearch) -> None:
        wanted, most = targets(config)[asked.workload], config.verdict.max_repetition_spread
        trials: list[search.Trial] = []
        while following := search.state(asked, search.outcomes(trials, most)).following:
            load = trial(config, plan.deployment, asked.workload, *following)
            point = PlannedPoint(load=load, key=key.digest(plan.key_parts, key.point_parts(load)))
            plan = plan.model_copy(update={"points": (*plan.points, point)})
            self._measure(plan, point, len(trials))
            record = Measurement.read(self.folder / self.record(plan.deployment, load.name))
            trials.append(search.Trial.of(point, record, self.folder / self.raw(plan.deployment, load.name), wanted))
        found = search.traced(plan.deployment, asked, wanted, trials, search.outcomes(trials, most))
        found.write(self.folder / Search.path_name(plan.deployment, asked.workload))


def searched(root: Path, workload: str) -> SearchedRun:
    """Return a sealed run that searches the load of one workload. The end-to-end latency grows with the concurrency."""
    configuration, raw_result = archived_run.configuration, archived_run.raw_result

    def one_search() -> dict[str, Any]:
        given = configuration()
        chat = given["workloads"].pop("chat") | {"requests": REQUESTS, "repetitions": 1}
        given["workloads"][workload] = chat | {"concurrency": {"search": {"from": 1, "to": 4, "trials": TRIALS}}}
        return given | {"slo": {"e2el_ms": {"p50": TARGET_MS}}}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(archived_run, "REQUESTS", REQUESTS)
        patch.setattr(archived_run, "configuration", one_search)
        patch.setattr(archived_run, "raw_result", lambda load, number, slow, begin: raw_result(load, number, slow * load, begin))
        run = SearchedRun(root)
        run.seal()
    return run
