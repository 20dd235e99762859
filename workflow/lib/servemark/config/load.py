"""Read and validate a configuration; one message names all its faults."""

import argparse
import contextlib
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from servemark.config import option_problems, options_files
from servemark.config.accepted import fitting_nothing
from servemark.config.asked_checks import pointless
from servemark.config.cluster import FOLDER, Site
from servemark.config.environment_problems import without_gpus
from servemark.config.expand import ask_without_router, too_little_time, try_expand
from servemark.config.model import Config
from servemark.config.positions import Source, read
from servemark.config.problems import Loc, Problem, config_error, from_pydantic, shortened
from servemark.config.restarts import without_repetitions
from servemark.config.searches import unsearchable
from servemark.errors import ConfigError

Look = Callable[[Config], list[Problem]]
LARGEST = 2**63 - 1
LONGEST = 100_000
"""Characters of a text. Linux accepts no argument or variable of 128 KiB (MAX_ARG_STRLEN)."""


def validate(
    data: Mapping[str, Any], sources: Sequence[Path] = (), default_cluster: str | None = None, look: Look = lambda _: []
) -> Config:
    """Check a configuration and return it, not expanded (see :func:`servemark.config.expand.expand`).

    Args:
        data: the merged configuration that Snakemake holds.
        sources: the YAML files it was merged from, in that order. Other values come from ``--config``.
        default_cluster: name or path of the cluster file if the configuration has no key ``cluster``.
        look: finds further problems of the expanded configuration, such as missing folders.

    Raises:
        ConfigError: all problems, each with place, key, value found, allowed values and closest spelling.
    """
    if default_cluster and data and isinstance(data, Mapping):
        data = {"cluster": default_cluster, **data}
    return _checked(data, [read(Path(path)) for path in sources], look)


def load(path: Path, cluster: str | None = None, look: Look = lambda _: []) -> Config:
    """Read and check one YAML file as :func:`validate` does. ``cluster`` overrides its key ``cluster``."""
    source = read_mapping(Path(path))
    return _checked({**source.data, "cluster": cluster} if cluster else source.data, [source], look)


def read_mapping(path: Path) -> Source:
    """Read a YAML file that must hold a mapping; raise ConfigError for other content."""
    source = read(path)
    if not isinstance(source.data, dict):
        raise _no_mapping(source.data, [source])
    return source


def check_configfiles(argv: Sequence[str] | None = None) -> None:
    """Refuse files of Snakemake's ``--configfile`` that are not configurations, before Snakemake reads them.

    Snakemake reads them before it includes the Snakefile. A missing file, a folder, another encoding or deep nesting then ends in a
    traceback with exit code 1, and an alias bomb never ends (snakemake 9.27: settings/types.py, ConfigSettings; common/configfile.py). But
    it imports every installed executor plugin before it parses its command line, and the plugin ``slurm-guarded`` calls this function,
    because ``servemark-1.dist-info`` names it. ``argv``: by default of this process; ignored unless it runs Snakemake.
    """
    argv = sys.argv if argv is None else argv
    program = Path(argv[0]) if argv else Path()
    if program.name != "snakemake" and program.parts[-2:] != ("snakemake", "__main__.py"):
        return
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--configfile", "--configfiles", nargs="+", type=Path, default=[])
    with contextlib.suppress(argparse.ArgumentError):  # Snakemake reports it.
        refuse_unreadable(parser.parse_known_args(argv[1:])[0].configfile)


def refuse_unreadable(paths: Iterable[Path]) -> None:
    """End the process with a message and exit code 2 if a file is not a configuration."""
    try:
        for path in paths:
            read_mapping(path)
    except ConfigError as error:
        print(f"servemark: {error.message()}", file=sys.stderr)
        sys.exit(error.exit_code)


def _checked(data: Any, sources: Sequence[Source], look: Look) -> Config:
    if not data or not isinstance(data, Mapping):
        raise _no_mapping(data, sources)
    try:
        data = _plain(data)
    except RecursionError:
        raise config_error([Problem((), "contains itself through an alias (*name)")], {}, sources) from None
    data, files, lost = options_files.merged(data)
    # Before the configuration files: an option in both has the line in the configuration.
    sources = [*files, *sources]
    if hostile := list(_faults(data)):
        raise config_error(hostile, data, sources)
    cluster, unusable = _cluster_file(data.get("cluster"))
    found = [*unusable, *lost]
    checked = {**data, "cluster": None}
    if cluster:
        checked = data = {**data, "cluster": cluster.data}
        sources = [*sources, cluster]
        if hostile := list(_faults(cluster.data, ("cluster",))):
            raise config_error(hostile, data, sources)
    rooms = ("models", "environments", "deployments", "workloads")
    context: dict[str, Any] = {room: tuple(map(str, data[room])) for room in rooms if isinstance(data.get(room), dict)}
    # The validation below reports an invalid cluster file. Checks that depend on the cluster are then left out.
    with contextlib.suppress(ValidationError):
        if not unusable:
            context["cluster"] = Site.model_validate(cluster.data) if cluster else None
    try:
        config = Config.model_validate(checked, context=context)
    except ValidationError as error:
        raise config_error([*found, *from_pydantic(error, data)], data, sources) from None
    found = found or option_problems.of_config(config, data)
    if not found:
        expanded, found = try_expand(config)
        more = (ask_without_router, too_little_time, without_repetitions, unsearchable, pointless, without_gpus, fitting_nothing)
        found = found or [problem for problems in more for problem in problems(expanded)] or look(expanded)
    if found or any(source.duplicates for source in sources):
        raise config_error(found, data, sources)
    return config


def _faults(value: Any, loc: Loc = ()) -> Iterator[Problem]:
    """Find the texts, numbers and keys in ``value`` that no program can take; ``loc`` is the place of ``value``."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if isinstance(key, str) and (fault := _fault(key)):
                yield Problem((*loc, key), f"the key {fault}", hide=True)
            else:
                yield from _faults(inner, (*loc, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _faults(inner, (*loc, index))
    elif fault := _fault(value):
        yield Problem(loc, fault)


def _fault(value: Any) -> str | None:
    if isinstance(value, str):
        if len(value) > LONGEST:
            return f"has {len(value):,} characters; the limit is {LONGEST:,}"
        # Line ends, tabs, and spaces and marks of all scripts are allowed.
        found = next((c for c in value if not c.isprintable() and c not in "\n\t" and (ord(c) < 0xA0 or 0xD800 <= ord(c) < 0xE000)), None)
        return f"contains the control character U+{ord(found):04X}" if found else None
    if isinstance(value, int):
        return None if abs(value) <= LARGEST else "is a number of more than 64 bits"
    if isinstance(value, float):
        return None if math.isfinite(value) else "must be a finite number"
    # The keys' own types refuse dates, because their messages state whether quotes help.
    return "is neither text nor a number nor a list" if isinstance(value, bytes | set) else None


def _no_mapping(data: Any, sources: Sequence[Source]) -> ConfigError:
    empty = data is None or data == {}
    text = "is empty; config/config.yaml is a complete example" if empty else "must be a mapping of keys such as `run` and `models`"
    return config_error([Problem((), text)], data, sources)


def _cluster_file(given: Any) -> tuple[Source | None, list[Problem]]:
    """Return the cluster file that the key ``cluster`` names, or the problem with it."""
    if given is None:
        return None, []
    known = tuple(sorted(path.stem for path in FOLDER.glob("*.yaml")))
    if not isinstance(given, str) or not given:
        return None, [Problem(("cluster",), f"must be the NAME of {FOLDER}/NAME.yaml or the path of a cluster file", known)]
    is_path = "/" in given or given.endswith((".yaml", ".yml"))
    path = Path(os.path.expanduser(given)) if is_path else FOLDER / f"{given}.yaml"
    if not os.path.exists(path):
        return None, [Problem(("cluster",), f"there is no file {shortened(str(path))}", known, given=given)]
    source = read(path, ("cluster",))
    if isinstance(source.data, dict):
        return source, []
    return None, [Problem(("cluster",), f"{path} must be a mapping of keys such as `scheduler`")]


def _plain(value: Any) -> Any:
    """Return the value with plain dicts in place of Snakemake's ordered mappings."""
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list) else value
