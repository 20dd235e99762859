"""Runs to compare: sealed ones that differ in speed, and small ones with three repetitions of each load."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from builders import archived_run, report_data_repeated
from servemark.records import Measurement
from servemark.report.gather import RunRecords


def archived(root: Path, slower: float = 1.0) -> archived_run.ArchivedRun:
    """Return a sealed run of one load with three repetitions, whose requests take ``slower`` times as long."""
    configuration, raw_result = archived_run.configuration, archived_run.raw_result

    def three() -> dict[str, Any]:
        given = configuration()
        given["workloads"]["chat"] |= {"concurrency": [1], "repetitions": 3}
        return given

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(archived_run, "configuration", three)
        patch.setattr(archived_run, "raw_result", lambda load, number, slow, begin: raw_result(load, number, slow * slower, begin))
        run = archived_run.ArchivedRun(root)
        run.seal()
    return run


def runs(names: tuple[str, ...] = ("equal-a",), **changes: Any) -> RunRecords:
    """Return some deployments of ``report_data_repeated``, with three repetitions of three loads."""
    base = report_data_repeated.repeated()
    return replace(
        base,
        config={"run": "repeated", "deployments": {name: {} for name in names}},
        plans={name: plan for name, plan in base.plans.items() if name in names},
        measurements=[item for item in base.measurements if item.deployment in names],
        **changes,
    )


def renamed(data: RunRecords, old: str, new: str) -> RunRecords:
    """Return the run with another name of a deployment."""
    return replace(
        data,
        config={"run": "renamed", "deployments": {new if name == old else name: {} for name in data.plans}},
        plans={
            (new if name == old else name): plan.model_copy(update={"deployment": new if name == old else name})
            for name, plan in data.plans.items()
        },
        measurements=[item.model_copy(update={"deployment": new}) if item.deployment == old else item for item in data.measurements],
    )


def scaled(item: Measurement, factor: float) -> Measurement:
    """Return a measurement with ``factor`` times the throughput in both parts."""
    steady = item.steady and item.steady.model_copy(update={"output_throughput": item.steady.output_throughput * factor})
    return item.model_copy(update={"output_throughput": item.output_throughput * factor, "steady": steady})
