"""YAML files with the line of every key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from servemark.errors import ConfigError

# libyaml is ten times faster than the pure-Python loader; some builds of PyYAML lack it.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_MISSING = object()

# The deepest key of a configuration has six levels.
MAX_DEPTH = 50


@dataclass(frozen=True)
class Source:
    """One YAML file: its text as data, and as nodes that know their lines."""

    path: Path
    data: Any
    root: yaml.Node | None
    duplicates: tuple[tuple[int, int, str], ...]
    """(line of the second, line of the first, key) of every key that a mapping holds twice; lines from 1"""
    at: tuple[Any, ...] = ()
    """where the file's content stands in the configuration; () for a file that is merged into it as a whole"""


def read(path: Path, at: tuple[Any, ...] = ()) -> Source:
    """Read one YAML file.

    Raises:
        ConfigError: the file is missing, unreadable, no YAML, or holds several documents.
    """
    advice = f"Correct {path}; mind the indentation and the space after each colon."
    try:
        text = path.read_text(encoding="utf-8")
        _refuse_depth(text)
        loader = _Loader(text)
        try:
            root = loader.get_single_node()
            duplicates = tuple(_duplicates(root)) if root is not None else ()
            data = loader.construct_document(root) if root is not None else None
        finally:
            loader.dispose()
    except FileNotFoundError:
        raise ConfigError(
            f"The configuration file {path} is missing.", do="Check the name given to --configfile."
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"The configuration file {path} cannot be read: {error}") from None
    except yaml.MarkedYAMLError as error:
        # The text of the line is left out: it could hold a secret.
        mark = error.problem_mark or error.context_mark
        where = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)
        text = ", ".join(part for part in (error.context, error.problem) if part)
        raise ConfigError(f"{where}: this is not valid YAML: {text}.", do=advice) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        text = " ".join(str(error).split())
        raise ConfigError(f"{path}: this is not valid YAML: {text}.", do=advice) from None
    return Source(path, data, root, duplicates, at)


def _refuse_depth(text: str) -> None:
    """Refuse nesting that no configuration has: composing it recurses in C and would crash the interpreter."""
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MAX_DEPTH:
            raise yaml.YAMLError(f"nested deeper than {MAX_DEPTH} levels")


def _duplicates(root: yaml.Node) -> list[tuple[int, int, str]]:
    """Keys that stand twice in one mapping; YAML would silently drop the first."""
    found: list[tuple[int, int, str]] = []
    seen: set[int] = set()
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if id(node) in seen:  # an alias shares its anchor's node, and may even contain itself
            continue
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            waiting.extend(node.value)
        elif isinstance(node, yaml.MappingNode):
            lines: dict[tuple[str, str], int] = {}
            for key, value in node.value:
                waiting.append(value)
                if not isinstance(key, yaml.ScalarNode) or key.tag == "tag:yaml.org,2002:merge":
                    continue
                line, identity = key.start_mark.line + 1, (key.tag, key.value)
                if identity in lines:
                    found.append((line, lines[identity], key.value))
                lines.setdefault(identity, line)
    return sorted(found)


def _child(node: yaml.Node | None, part: Any) -> tuple[int, yaml.Node] | None:
    """(line from 1, node) of one key or list index; None for keys whose text differs from their value, such as `no`."""
    if isinstance(node, yaml.SequenceNode):
        return node.value[part].start_mark.line + 1, node.value[part]
    # Constructing the data has put what `<<` brings in front of the mapping's own keys: the last one counts.
    for key, value in reversed(node.value if isinstance(node, yaml.MappingNode) else []):
        if isinstance(key, yaml.ScalarNode) and key.value == str(part):
            return key.start_mark.line + 1, value
    return None


def value_at(data: Any, loc: Sequence[Any]) -> Any:
    """What stands at ``loc`` in nested mappings and lists, or a marker for which :func:`is_missing` holds."""
    for part in loc:
        try:
            data = data[part]
        except (KeyError, IndexError, TypeError):
            return _MISSING
    return data


def is_missing(value: Any) -> bool:
    """Whether :func:`value_at` found nothing."""
    return value is _MISSING


def find(sources: Sequence[Source], data: Any, loc: Sequence[Any]) -> tuple[int, int] | None:
    """(index of the file, line from 1) where the value in effect at ``loc`` was written.

    A later file overrides an earlier one. A key that is absent from ``data`` is looked for at the closest entry around
    it. None when no file holds the value: it came from the command line.
    """
    loc = list(loc)
    while loc and is_missing(value_at(data, loc)):
        loc.pop()
    wanted = value_at(data, loc)
    for index in reversed(range(len(sources))):
        source = sources[index]
        inside = loc[len(source.at) :]
        if [*source.at, *inside] != loc:
            continue
        here = value_at(source.data, inside)
        # Mappings are merged key by key, so they differ from the file when one key inside was overridden.
        same = here == wanted or (isinstance(here, dict) and isinstance(wanted, dict))
        if is_missing(here) or not same:
            continue
        line, node = 1, source.root
        for part in inside:
            step = _child(node, part)
            if step is None:
                break
            line, node = step[0], step[1]
        return index, line
    return None
