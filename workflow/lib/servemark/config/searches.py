"""The searches of a configuration, the load points of their trials, and what keeps a search from deciding anything."""

import math
from collections.abc import Iterator
from typing import Literal

from servemark.config.expand import client_cpus, points, workload_names, workload_points
from servemark.config.model import Config
from servemark.config.problems import Problem
from servemark.config.restarts import deployment_of
from servemark.config.search import Range
from servemark.config.workload import Load
from servemark.measurement import slo, steady
from servemark.measurement.slo import PERCENTILES, Targets
from servemark.records import LoadPoint, PlannedSearch


def searches(config: Config, start: str) -> tuple[PlannedSearch, ...]:
    """Return the searches of one start of a deployment of an expanded configuration, in the order they run after its load points."""
    found = []
    for name in workload_names(config, start):
        workload = config.workloads[name]
        if asked := workload.searched:
            variable: Literal["concurrency", "request_rate"] = "request_rate" if workload.request_rate else "concurrency"
            found.append(PlannedSearch(workload=name, variable=variable, low=asked.low, high=asked.high, trials=asked.trials))
    return tuple(found)


def trial(config: Config, start: str, workload: str, load: float, repetition: int) -> LoadPoint:
    """Return the load point of a trial. It is the point of a workload with this load in a list, so both have one ledger key."""
    one = config.workloads[workload].at(load, repetition)
    return workload_points(workload, one, client_cpus(config, start))[repetition - 1]


def ends(config: Config, start: str) -> tuple[LoadPoint, ...]:
    """Return the load points at both ends of each search, which decide what a plan must allow for."""
    return tuple(trial(config, start, one.workload, load, 1) for one in searches(config, start) for load in (one.low, one.high))


def most_points(config: Config, start: str) -> int:
    """Return the load points of one start of a deployment, with the most trials of its searches and its accuracy checks."""
    return len(points(config, start)) + sum(one.trials for one in searches(config, start)) + len(deployment_of(config, start).checks)


def targets(config: Config) -> dict[str, Targets]:
    """Return the latency targets of each workload that has some."""
    return slo.targets(config.model_dump(mode="json", include={"slo", "workloads"}))


def unsearchable(config: Config) -> Iterator[Problem]:
    """Yield a problem for each search of an expanded configuration that has no targets, or too few requests to decide."""
    wanted = targets(config)
    for name, workload in config.workloads.items():
        if asked := workload.searched:
            if name not in wanted:
                swept = "request_rate" if workload.request_rate else "concurrency"
                text = (
                    "searches the highest load that meets the latency targets, and there are none; set `slo` of this workload or of the run"
                )
                yield Problem(("workloads", name, swept), text)
                continue
            yield from _too_few(config, name, workload, asked, wanted[name])


def _too_few(config: Config, name: str, workload: Load, asked: Range, wanted: Targets) -> Iterator[Problem]:
    key = "requests" if workload.requests else "duration"
    low, high = (workload.at(load, 1).requests_of(1)[0] for load in (asked.low, asked.high))
    percentile = max(PERCENTILES[one] for limits in wanted.values() for one in limits)
    least = steady.needed(percentile)
    if low < least:
        text = f"gives {low} requests at the load `from`, and a target for p{percentile} needs {least} or more; raise `{key}`"
        yield Problem(("workloads", name, key), text)
    slots = math.ceil(config.verdict.min_requests_per_slot * asked.high)
    if not workload.request_rate and high < slots:
        text = (
            f"is {high} at the concurrency {asked.high:g}, and below {slots} (`verdict.min_requests_per_slot`) every measurement there is "
            f"SUSPECT, which a search cannot use; set `requests` to {slots} or more"
        )
        yield Problem(("workloads", name, "requests"), text)
