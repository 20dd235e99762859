"""Divide the repetitions of a deployment among several starts of its servers (`restarts`)."""

from collections.abc import Iterator

from servemark.config.model import Config, Deployment
from servemark.config.problems import Problem
from servemark.records.restarts import configured, restart_of, start_name, start_names


def starts(config: Config) -> tuple[str, ...]:
    """Return the names of all starts of all deployments."""
    return tuple(start_names(config.deployments, config.restarts, interleaved=config.order == "interleaved"))


def deployment_of(config: Config, start: str) -> Deployment:
    """Return the configured deployment of a start.

    Raises:
        KeyError: the configuration has no such start.
    """
    if not 0 <= restart_of(start) <= config.restarts or start_name(configured(start), restart_of(start)) != start:
        raise KeyError(start)
    return config.deployments[configured(start)]


def measures(config: Config, start: str, repetition: int) -> bool:
    """Return whether a start measures this repetition. Successive repetitions belong to successive starts."""
    return (repetition - 1) % (config.restarts + 1) == restart_of(start)


def without_repetitions(config: Config) -> Iterator[Problem]:
    """Yield a problem if some start would have nothing to measure of a workload."""
    used = dict.fromkeys(name for deployment in config.deployments.values() for name in deployment.workloads or config.workloads)
    for name in used:
        if config.workloads[name].searched and config.restarts:
            yield Problem(("restarts",), f"must be 0, because workloads.{name} has a search, which belongs to one start of the servers")
        elif (repetitions := config.workloads[name].repetitions) <= config.restarts:
            text = (
                f"makes {config.restarts + 1} starts of each deployment, but workloads.{name}.repetitions is {repetitions}, and each start "
                f"measures one repetition or more; lower `restarts` to {repetitions - 1}, or raise `repetitions` to {config.restarts + 1}"
            )
            yield Problem(("restarts",), text)
