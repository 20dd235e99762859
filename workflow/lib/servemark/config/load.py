"""The way in: a configuration is validated once, and every fault of it is told in one message."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from servemark.config.cluster import FOLDER, Site
from servemark.config.expand import nobody_to_ask, try_expand
from servemark.config.limits import faults
from servemark.config.model import Config
from servemark.config.positions import Source, read
from servemark.config.problems import Problem, config_error, describe, from_pydantic, shortened
from servemark.errors import ConfigError

Look = Callable[[Config], list[Problem]]


def validate(
    data: Mapping[str, Any], sources: Sequence[Path] = (), default_cluster: str | None = None, look: Look = lambda _: []
) -> Config:
    """Check a configuration; the result is not expanded (see :func:`servemark.config.expand.expand`).

    Args:
        data: the merged configuration, as Snakemake holds it.
        sources: the YAML files it was merged from, in that order. A value that none of them holds comes from ``--config``.
        default_cluster: name or path of the cluster's file when the configuration has no key ``cluster``.
        look: finds further problems of the expanded configuration, such as folders that are missing.

    Raises:
        ConfigError: with all problems at once: place, key, value found, what is allowed, closest spelling.
    """
    if default_cluster and data and isinstance(data, Mapping):
        data = {"cluster": default_cluster, **data}
    return _checked(data, [read(Path(path)) for path in sources], look)


def load(path: Path, cluster: str | None = None, look: Look = lambda _: []) -> Config:
    """Read and check one YAML file as :func:`validate` does. ``cluster`` takes the place of the cluster file that it names."""
    source = read_mapping(Path(path))
    return _checked({**source.data, "cluster": cluster} if cluster else source.data, [source], look)


def read_mapping(path: Path) -> Source:
    """Read a YAML file that holds keys; everything else is a ConfigError."""
    source = read(path)
    if not isinstance(source.data, dict):
        raise _no_mapping(source.data, [source])
    return source


def read_resolved(path: str | os.PathLike[str]) -> Config:
    """Read a configuration written by ``Config.model_dump(mode="json")``; raise ConfigError if it is missing or does not fit."""
    try:
        return Config.model_validate(json.loads(Path(path).read_text(encoding="utf-8")))
    except ValidationError as error:
        fault = "; ".join(describe(problem, {}) for problem in from_pydantic(error, {}))
    except (OSError, ValueError) as error:
        fault = str(error)
    raise ConfigError(
        f"The resolved configuration {path} cannot be used: {fault}",
        do="Delete it and run snakemake again: it is made from the configuration.",
    )


def _checked(data: Any, sources: Sequence[Source], look: Look) -> Config:
    if not data or not isinstance(data, Mapping):
        raise _no_mapping(data, sources)
    try:
        data = _plain(data)
    except RecursionError:
        raise config_error([Problem((), "contains itself through an alias (*name)")], {}, sources) from None
    if hostile := list(faults(data)):
        raise config_error(hostile, data, sources)
    cluster, found = _cluster_file(data.get("cluster"))
    checked = {**data, "cluster": None}
    if cluster:
        checked = data = {**data, "cluster": cluster.data}
        sources = [*sources, cluster]
        if hostile := list(faults(cluster.data, ("cluster",))):
            raise config_error(hostile, data, sources)
    rooms = ("models", "environments", "deployments", "workloads")
    context: dict[str, Any] = {room: tuple(map(str, data[room])) for room in rooms if isinstance(data.get(room), dict)}
    # A cluster that does not validate is told with everything else; what depends on it cannot be judged.
    with contextlib.suppress(ValidationError):
        if not found:
            context["cluster"] = Site.model_validate(cluster.data) if cluster else None
    try:
        config = Config.model_validate(checked, context=context)
    except ValidationError as error:
        raise config_error([*found, *from_pydantic(error, data)], data, sources) from None
    if not found:
        expanded, found = try_expand(config)
        found = found or nobody_to_ask(expanded) or look(expanded)
    if found or any(source.duplicates for source in sources):
        raise config_error(found, data, sources)
    return config


def _no_mapping(data: Any, sources: Sequence[Source]) -> ConfigError:
    empty = data is None or data == {}
    text = "is empty; config/config.yaml is a complete example" if empty else "must be a mapping of keys such as `run` and `models`"
    return config_error([Problem((), text)], data, sources)


def _cluster_file(given: Any) -> tuple[Source | None, list[Problem]]:
    """Return the file that ``cluster`` names, or why there is none."""
    if given is None:
        return None, []
    known = tuple(sorted(path.stem for path in FOLDER.glob("*.yaml")))
    if not isinstance(given, str) or not given:
        return None, [Problem(("cluster",), f"must be NAME of {FOLDER}/NAME.yaml or the path of such a file", known)]
    is_path = "/" in given or given.endswith((".yaml", ".yml"))
    path = Path(os.path.expanduser(given)) if is_path else FOLDER / f"{given}.yaml"
    if not os.path.exists(path):
        return None, [Problem(("cluster",), f"there is no file {shortened(str(path))}", known, given=given)]
    source = read(path, ("cluster",))
    if isinstance(source.data, dict):
        return source, []
    return None, [Problem(("cluster",), f"{path} must be a mapping of keys such as `scheduler`")]


def _plain(value: Any) -> Any:
    """Snakemake's ordered mappings as ordinary ones."""
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list) else value
