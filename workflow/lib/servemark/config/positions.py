"""YAML files with the line of every key."""

from __future__ import annotations

import functools
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
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
    """One YAML file: its text as data, and as nodes that know their lines.

    Attributes:
        duplicates: (line of the second, line of the first, key) of every key that a mapping holds twice; lines from 1.
        at: where the file's content stands in the configuration; () for a file that is merged into it as a whole.
    """

    path: Path
    data: Any
    root: yaml.Node | None
    duplicates: tuple[tuple[int, int, str], ...]
    at: tuple[Any, ...] = ()


def read(path: Path, at: tuple[Any, ...] = ()) -> Source:
    """Read one YAML file; raise ConfigError if it is missing, unreadable, no YAML, too large, or holds several documents."""
    text, where = _text(path), str(path)
    advice = f"Correct {path}; mind the indentation and the space after each colon."
    try:
        loader = _Loader(text)
        try:
            duplicates = _walk(text, loader)
            root = loader.get_single_node()
            data = loader.construct_document(root) if root is not None else None
        finally:
            loader.dispose()
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        fault = " ".join(str(error).split())
        if isinstance(error, yaml.MarkedYAMLError):
            # The text of the line is left out: it could hold a secret.
            mark = error.problem_mark or error.context_mark
            where = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else where
            fault = ", ".join(part for part in (error.context, error.problem) if part)
        if isinstance(error, _Refused):
            raise ConfigError(f"{where}: this cannot be a configuration: it {fault}.", do="Compare it with config/config.yaml.") from None
        raise ConfigError(f"{where}: this is not valid YAML: {fault}.", do=advice) from None
    return Source(path, data, root, duplicates, at)


def _text(path: Path) -> str:
    """Return the content of a regular file. A pipe or device is refused: each job of a run reads the file again."""
    place, do = f"The configuration file {path}", "Check its path and its permissions, and the name given to --configfile."
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            fault, do = "is a folder, a pipe or a device, not a regular file", "Name a YAML file on a disk."
        else:
            with path.open("rb") as stream:
                content = stream.read(MAX_BYTES + 1)
            if len(content) <= MAX_BYTES:
                return content.decode()
            fault = f"has more than {MAX_BYTES // 2**20} MiB"
            do = "Check that it is the configuration. Use `sweeps` in place of many similar entries."
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        place, do = f"{path}:{line}:", "Save the file with the encoding UTF-8."
        fault = f"byte {error.start + 1} is not valid UTF-8: 0x{content[error.start]:02x}"
    except (OSError, ValueError) as error:
        fault = f"cannot be read: {getattr(error, 'strerror', None) or error}"
    raise ConfigError(f"{place} {fault}.", do=do)


@dataclass
class _Open:
    """A mapping or list whose end is still to come: how many nodes stand in it, and its keys with their lines."""

    start: Any
    values: int = 1
    levels: int = 0
    children: int = 0
    keys: dict[tuple[str, str], int] = field(default_factory=dict)


def _walk(text: str, resolver: Any) -> tuple[tuple[int, int, str], ...]:
    """Return the keys that stand twice in one mapping, as ``Source.duplicates``; YAML would silently drop the first.

    The parser's events come one by one, before anything is composed: deep nesting would crash the interpreter in C, and a few aliases can
    stand for more values than memory holds. More of either than a configuration has is refused, and so is a node that contains itself.
    """
    sizes: dict[str | None, tuple[int, int] | None] = {}  # values and levels by anchor; None: not ended
    scalars: dict[str | None, tuple[str, str]] = {}  # tag and text by anchor
    found, opened = [], [_Open(None)]
    event: Any
    for event in yaml.parse(text, Loader=_Parser):
        here, mark = opened[-1], event.start_mark
        size: tuple[int, int] | None = (1, 0)
        if isinstance(event, yaml.CollectionStartEvent):
            opened.append(_Open(event))
            size = None
        elif isinstance(event, yaml.CollectionEndEvent):
            opened.pop()
            size, event, here = (here.values, 1 + here.levels), here.start, opened[-1]
        elif isinstance(event, yaml.AliasEvent):
            if (size := sizes.get(event.anchor, (1, 0))) is None:
                raise _Refused("contains itself through an alias (*name)", event)
        elif not isinstance(event, yaml.ScalarEvent):
            continue
        scalar = scalars.get(event.anchor) if isinstance(event, yaml.AliasEvent) else None
        if isinstance(event, yaml.ScalarEvent):
            tag = event.tag if event.tag not in (None, "!") else resolver.resolve(yaml.ScalarNode, event.value, event.implicit)
            scalar = scalars[event.anchor] = (tag, event.value)
        if scalar and isinstance(here.start, yaml.MappingStartEvent) and here.children % 2 == 0:
            if scalar in here.keys and scalar[0] != "tag:yaml.org,2002:merge":
                found.append((mark.line + 1, here.keys[scalar], scalar[1]))
            here.keys.setdefault(scalar, mark.line + 1)
        if event.anchor and not isinstance(event, yaml.AliasEvent):
            sizes[event.anchor] = size
        if size:
            here.children += 1
            here.values, here.levels = here.values + size[0], max(here.levels, size[1])
        if here.values > MAX_VALUES:
            raise _Refused(f"holds more than {MAX_VALUES:,} keys and values, those behind aliases (*name) counted each time", event)
        if len(opened) - 1 + (size or (0, 0))[1] > MAX_DEPTH:
            raise _Refused(f"is nested deeper than {MAX_DEPTH} levels, aliases (*name) counted", event)
    return tuple(sorted(found))


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
    for index, source in reversed(list(enumerate(sources))):
        inside = loc[len(source.at) :]
        here = value_at(source.data, inside)
        # Mappings are merged key by key, so they differ from the file when one key inside was overridden.
        same = _same(here, wanted) or (isinstance(here, dict) and isinstance(wanted, dict))
        if [*source.at, *inside] == loc and same and not is_missing(here):
            return index, _line(source.root, inside)
    return None


def _line(node: yaml.Node | None, loc: Sequence[Any]) -> int:
    """Return the line of what stands at ``loc``; of the entry around a key whose text differs from its value, such as `no`."""
    line = 1
    for part in loc:
        if isinstance(node, yaml.SequenceNode):
            node = node.value[part]
            line = node.start_mark.line + 1
        elif found := _entries(node).get(str(part)) if isinstance(node, yaml.MappingNode) else None:
            line, node = found
        else:
            break
    return line


@functools.lru_cache(maxsize=64)
def _entries(node: yaml.MappingNode) -> dict[str, tuple[int, yaml.Node]]:
    """Return (line from 1, node) by key. What `<<` brings stands in front of the mapping's own keys by now: the last one counts."""
    return {key.value: (key.start_mark.line + 1, value) for key, value in node.value if isinstance(key, yaml.ScalarNode)}
