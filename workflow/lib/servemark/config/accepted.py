"""Patterns of `accept_invalid` that fit nothing in the configuration."""

import fnmatch
import re
from collections.abc import Iterator

from servemark.config.expand import points
from servemark.config.model import Config
from servemark.config.problems import Problem
from servemark.config.restarts import deployment_of, starts
from servemark.config.searches import searches


def fitting_nothing(config: Config) -> Iterator[Problem]:
    """Yield a problem for each pattern that fits no load point and no accuracy check of an expanded configuration.

    The loads of a search are not known, so a pattern fits them if its text before the first wildcard fits the workload's name.
    """
    if not config.accept_invalid:
        return
    names: list[str] = []
    searched: list[tuple[str, str]] = []
    for start in starts(config):
        searched += [(start, f"{one.workload}-") for one in searches(config, start)]
        names += [f"{start}/{name}" for name in (*(point.name for point in points(config, start)), *deployment_of(config, start).checks)]
    for number, pattern in enumerate(config.accept_invalid):
        deployment, _, point = pattern.partition("/")
        begin = re.split(r"[*?[]", point)[0]
        of_search = any(
            fnmatch.fnmatchcase(start, deployment) and (begin.startswith(workload) or workload.startswith(begin))
            for start, workload in searched
        )
        if pattern != "*/*" and not of_search and not any(fnmatch.fnmatchcase(name, pattern) for name in names):
            text = (
                "fits no load point and no accuracy check of this run. Correct the pattern or remove it. Variants of a sweep and restarts "
                "have names of their own (`plain-tp-2`, `plain+1`)"
            )
            yield Problem(("accept_invalid", number), text)
