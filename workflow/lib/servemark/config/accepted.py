"""Patterns of `accept_invalid` that fit nothing in the configuration."""

import fnmatch
from collections.abc import Iterator

from servemark.config.expand import points
from servemark.config.model import Config
from servemark.config.problems import Problem
from servemark.config.restarts import deployment_of, starts
from servemark.config.searches import searches


def fitting_nothing(config: Config) -> Iterator[Problem]:
    """Yield a problem for each pattern that fits no load point and no accuracy check of an expanded configuration.

    The loads of a search are not known, so any name fits a deployment with one.
    """
    if not config.accept_invalid:
        return
    names, searched = [], []
    for start in starts(config):
        searched += [start] if searches(config, start) else []
        names += [f"{start}/{name}" for name in (*(point.name for point in points(config, start)), *deployment_of(config, start).checks)]
    for number, pattern in enumerate(config.accept_invalid):
        deployment = pattern.partition("/")[0]
        if not fnmatch.filter(names, pattern) and not fnmatch.filter(searched, deployment) and pattern != "*/*":
            yield Problem(("accept_invalid", number), "fits no load point and no accuracy check", tuple(names), given=pattern)
