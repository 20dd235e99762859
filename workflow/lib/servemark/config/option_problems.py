"""Options of deployments and workloads, compared with the vLLM that a lock file pins, before the environment exists.

An environment of a prefix, or of a version without a shipped list, decides at the plan, by its own list.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from servemark.config.cuda_graphs import without_workload
from servemark.config.model import Config, Deployment, Environment
from servemark.config.positions import MISSING, value_at
from servemark.config.problems import Loc, Problem
from servemark.config.reserved import CLIENT_OPTIONS, SERVE_OPTIONS, kebab, refusal
from servemark.config.workload import Load
from servemark.environments import known_options, lockfiles, options
from servemark.environments.known_options import Known
from servemark.environments.options import Fault


def of_config(config: Config, data: Mapping[str, Any]) -> list[Problem]:
    """Return the problems of every deployment's and workload's options. ``data``: the configuration as written, for the spellings."""
    found = [problem for name, one in config.deployments.items() for problem in of_entry(one, config, ("deployments", name))] + [
        problem for name, load in config.workloads.items() for problem in of_entry(load, config, ("workloads", name))
    ]
    return [Problem(_written(problem.loc, data), problem.text, problem.allowed, problem.hide, problem.given) for problem in found]


def of_entry(entry: Deployment | Load, config: Config, loc: Loc) -> list[Problem]:
    """Return the problems of the options of one deployment, or of one workload for the deployments that name it; at most one an option.

    Args:
        loc: place of the entry.
    """
    serve = isinstance(entry, Deployment)
    given = without_workload(entry.options) if isinstance(entry, Deployment) else entry.client_options
    if not given:
        return []
    users = [entry] if isinstance(entry, Deployment) else _users(config, str(loc[-1]))
    room = "options" if serve else "client_options"
    found: dict[str, Problem] = {}
    for name in dict.fromkeys(user.environment for user in users):
        for fault in _faults(given, config.environments[name], serve=serve):
            found.setdefault(fault.option, Problem((*loc, room, fault.option), fault.text, fault.allowed, given=fault.given))
    return list(found.values())


def _users(config: Config, workload: str) -> list[Deployment]:
    return [one for one in config.deployments.values() if one.workloads is None or workload in one.workloads]


def _faults(given: Mapping[str, Any], environment: Environment, *, serve: bool) -> Iterator[Fault]:
    """Yield the faults that every vLLM which the environment may have finds."""
    listed = known(environment)
    table = SERVE_OPTIONS if serve else CLIENT_OPTIONS
    each = [
        list(options.faults(given, one.by_name[0 if serve else 1], one.version, lambda name: bool(refusal(name, table)))) for one in listed
    ]
    in_all = set.intersection(*({fault.option for fault in found} for found in each)) if each else set()
    yield from (fault for fault in each[0] if fault.option in in_all) if each else ()


def known(environment: Environment) -> tuple[Known, ...]:
    """Return the options of each vLLM that the environment may have; () if they are not known."""
    return known_options.of_versions(lockfiles.vllm_versions(environment.lock)) if environment.lock else ()


def _written(loc: Loc, data: Any) -> Loc:
    """Return the place of an option as the user spelled it, with dashes or underscores."""
    if value_at(data, loc) is MISSING and isinstance(options := value_at(data, loc[:-1]), dict):
        return next(((*loc[:-1], name) for name in options if isinstance(name, str) and kebab(name) == loc[-1]), loc)
    return loc
