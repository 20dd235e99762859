"""``options_file`` of a deployment: a file of ``vllm serve --config``, merged below ``options`` before the configuration is validated.

The content is then a part of ``options``: plan, ledger key and resolved configuration are those of the same options written inline.
"""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from servemark.config.positions import Source, read
from servemark.config.problems import Problem, shortened
from servemark.config.reserved import kebab

KEY = "options_file"


def named(data: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield each deployment with an ``options_file``, and the key's value."""
    deployments = data.get("deployments")
    for name, deployment in deployments.items() if isinstance(deployments, Mapping) else ():
        if isinstance(deployment, Mapping) and deployment.get(KEY) is not None:
            yield name, deployment[KEY]


def merged(data: Mapping[str, Any]) -> tuple[dict[str, Any], list[Source], list[Problem]]:
    """Return the configuration with the options of every file in ``options``, the files, and the problems with them.

    Raises:
        ConfigError: a file is not YAML.
    """
    sources: list[Source] = []
    problems: list[Problem] = []
    changed: dict[str, Any] = {}
    for name, given in named(data):
        loc = ("deployments", name, "options")
        path = Path(os.path.expanduser(given)) if isinstance(given, str) else None
        if path is None or not os.path.isfile(path):
            fault = f"there is no file {shortened(str(path), 200)}" if path else "must be the path of a YAML file"
            problems.append(Problem((*loc[:-1], KEY), fault))
            continue
        source = read(path, loc)
        if not isinstance(source.data or {}, dict):
            problems.append(Problem((*loc[:-1], KEY), f"{path} must be a mapping of options of `vllm serve`"))
            continue
        source = replace(source, data={key: _as_vllm_reads(value) for key, value in (source.data or {}).items()})
        sources.append(source)
        deployment = {key: value for key, value in data["deployments"][name].items() if key != KEY}
        changed[name] = {**deployment, "options": _below(source.data, deployment.get("options"))}
    if not changed:
        return dict(data), sources, problems
    return {**data, "deployments": {**data["deployments"], **changed}}, sources, problems


def _below(file: dict[Any, Any], options: Any) -> Any:
    """Return the options of the file and of the deployment. An option of the deployment replaces the file's, in either spelling."""
    if options is None:
        return file
    if not isinstance(options, dict):
        return options
    own = {_base(name) for name in options}
    return {**{name: value for name, value in file.items() if _base(name) not in own}, **options}


def _base(name: Any) -> Any:
    """Return an option's name with dashes, without the ``no-`` of a negation."""
    return kebab(name).removeprefix("no-") if isinstance(name, str) else name


def _as_vllm_reads(value: Any) -> Any:
    """Return a value as vLLM passes it on: a mapping as JSON, null as None (utils/argparse_utils.py, load_config_file, 0.32.0)."""
    if isinstance(value, dict):
        return json.dumps(value, default=str)
    return "None" if value is None else value
