"""YAML files with the line of every key."""

from __future__ import annotations

import functools
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from servemark.errors import ConfigError

# libyaml is ten times faster than the pure-Python loader; some builds of PyYAML lack it.
_Parser: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_MISSING = object()

# The deepest key of a configuration has six levels.
MAX_DEPTH = 50
# A thousand deployments, each with options of its own, are half of this.
MAX_BYTES = 2**20
# Keys and values with every alias (*name) written out: a few lines of aliases can stand for more than any memory holds.
MAX_VALUES = 100_000


class _Loader(_Parser):
    """Names the line of a value that is none, such as the 13th month."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except ValueError as error:
            raise yaml.MarkedYAMLError(problem=str(error), problem_mark=node.start_mark) from None


class _Refused(yaml.MarkedYAMLError):
    """Valid YAML that is no configuration."""

    def __init__(self, problem: str, at: Any):
        super().__init__(problem=problem, problem_mark=at.start_mark)


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
        ConfigError: the file is missing, unreadable, no YAML, too large, or holds several documents.
    """
    advice = f"Correct {path}; mind the indentation and the space after each colon."
    text = _text(path)
    try:
        _refuse_depth(text)
        loader = _Loader(text)
        try:
            root = loader.get_single_node()
            if root is not None:
                _measure(root, 1, {})
            duplicates = tuple(_duplicates(root)) if root is not None else ()
            data = loader.construct_document(root) if root is not None else None
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        # The text of the line is left out: it could hold a secret.
        mark = error.problem_mark or error.context_mark
        where = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)
        text = ", ".join(part for part in (error.context, error.problem) if part)
        if isinstance(error, _Refused):
            raise ConfigError(f"{where}: this cannot be a configuration: it {text}.", do="Compare it with config/config.yaml.") from None
        raise ConfigError(f"{where}: this is not valid YAML: {text}.", do=advice) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        text = " ".join(str(error).split())
        raise ConfigError(f"{path}: this is not valid YAML: {text}.", do=advice) from None
    return Source(path, data, root, duplicates, at)


def _text(path: Path) -> str:
    """Return the content of a regular file. A pipe or device is refused: each job of a run reads the file again."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            what = "a folder" if path.is_dir() else "a pipe or a device"
            raise ConfigError(f"The configuration file {path} is {what}, not a regular file.", do="Name a YAML file on a disk.")
        with path.open("rb") as stream:
            content = stream.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise ConfigError(
                f"The configuration file {path} has more than {MAX_BYTES // 2**20} MiB.",
                do="Check that it is the configuration. Use `sweeps` in place of many similar entries.",
            )
        return content.decode()
    except FileNotFoundError:
        raise ConfigError(f"The configuration file {path} is missing.", do="Check the name given to --configfile.") from None
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            f"{path}:{line}: byte {error.start + 1} is not valid UTF-8: 0x{content[error.start]:02x}.",
            do="Save the file with the encoding UTF-8.",
        ) from None
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"The configuration file {path} cannot be read: {getattr(error, 'strerror', None) or error}.",
            do="Check its path and its permissions.",
        ) from None


def _refuse_depth(text: str) -> None:
    """Refuse nesting that no configuration has: composing it recurses in C and would crash the interpreter."""
    depth = 0
    for event in yaml.parse(text, Loader=_Parser):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MAX_DEPTH:
            raise _Refused(f"is nested deeper than {MAX_DEPTH} levels", event)


def _measure(node: yaml.Node, depth: int, known: dict[int, tuple[int, int] | None]) -> tuple[int, int]:
    """Return (values, levels) below and with ``node``, aliases written out.

    Raises:
        yaml.MarkedYAMLError: more of either than a configuration has, or a node contains itself.
    """
    if isinstance(node, yaml.ScalarNode):
        return 1, 1
    if id(node) in known:
        found = known[id(node)]
        if found is None:
            raise _Refused("contains itself through an alias (*name)", node)
    else:
        known[id(node)] = None
        inner = [part for pair in node.value for part in pair] if isinstance(node, yaml.MappingNode) else node.value
        sizes = [_measure(part, depth + 1, known) for part in inner]
        found = known[id(node)] = 1 + sum(size for size, _ in sizes), 1 + max((high for _, high in sizes), default=0)
    values, levels = found
    if values > MAX_VALUES:
        raise _Refused(f"holds more than {MAX_VALUES:,} keys and values, those behind aliases (*name) counted each time", node)
    if depth - 1 + levels > MAX_DEPTH:
        raise _Refused(f"is nested deeper than {MAX_DEPTH} levels, aliases (*name) counted", node)
    return found


def _duplicates(root: yaml.Node) -> list[tuple[int, int, str]]:
    """Return keys that stand twice in one mapping; YAML would silently drop the first."""
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
    """Return (line from 1, node) of one key or list index; None for keys whose text differs from their value, such as `no`."""
    if isinstance(node, yaml.SequenceNode):
        return node.value[part].start_mark.line + 1, node.value[part]
    return _entries(node).get(str(part)) if isinstance(node, yaml.MappingNode) else None


@functools.lru_cache(maxsize=64)
def _entries(node: yaml.MappingNode) -> dict[str, tuple[int, yaml.Node]]:
    """Return (line from 1, node) by key. What `<<` brings stands in front of the mapping's own keys by now: the last one counts."""
    return {key.value: (key.start_mark.line + 1, value) for key, value in node.value if isinstance(key, yaml.ScalarNode)}


def value_at(data: Any, loc: Sequence[Any]) -> Any:
    """Return what stands at ``loc`` in nested mappings and lists, or a marker for which :func:`is_missing` holds."""
    for part in loc:
        try:
            data = data[part]
        except (KeyError, IndexError, TypeError):
            return _MISSING
    return data


def is_missing(value: Any) -> bool:
    """Return whether :func:`value_at` found nothing."""
    return value is _MISSING


def _same(here: Any, wanted: Any) -> bool:
    """Return whether two values are equal; NaN, which equals nothing, is taken for equal to NaN."""
    if isinstance(here, list) and isinstance(wanted, list):
        return len(here) == len(wanted) and all(map(_same, here, wanted))
    return bool(here == wanted or (here != here and wanted != wanted))


def find(sources: Sequence[Source], data: Any, loc: Sequence[Any]) -> tuple[int, int] | None:
    """Return (index of the file, line from 1) where the value in effect at ``loc`` was written.

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
        same = _same(here, wanted) or (isinstance(here, dict) and isinstance(wanted, dict))
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
