"""YAML files with the line of every key."""

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

MISSING = object()
"""What :func:`value_at` returns where there is no value."""

# The deepest key of a configuration has six levels.
MAX_DEPTH = 50
# A thousand deployments with their own options take half of this.
MAX_BYTES = 2**20
# Keys and values, with every alias (*name) written out.
MAX_VALUES = 100_000


class _Loader(_Parser):
    """A loader that adds the line to the error of an impossible value, such as the 13th month, and refuses numbers in base 60.

    YAML 1.1 reads 24:00:00 as 86400 (yaml.org/type/int.html). With Slurm's notation of a time, `max_minutes` would be 60 days.
    """

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            value = super().construct_object(node, deep)
            if isinstance(value, int | float) and ":" in str(node.value):
                do = "Write a number without colons, or put quotes around a text."
                raise _Refused(f"has {node.value}, which YAML reads as the number {value}", node, do)
            return value
        except ValueError as error:
            raise yaml.MarkedYAMLError(problem=str(error), problem_mark=node.start_mark) from None


class _Refused(yaml.MarkedYAMLError):
    """Valid YAML that is not a configuration."""

    def __init__(self, problem: str, at: Any, do: str = "Compare it with config/config.yaml."):
        super().__init__(problem=problem, problem_mark=at.start_mark)
        self.do = do


@dataclass(frozen=True)
class Source:
    """One YAML file: its content as data, and as nodes with line numbers.

    Attributes:
        duplicates: (line of the second, line of the first, key) of every key that a mapping holds twice; lines from 1.
        at: place of the file's content in the configuration; () for a file that is merged into it as a whole.
    """

    path: Path
    data: Any
    root: yaml.Node | None
    duplicates: tuple[tuple[int, int, str], ...]
    at: tuple[Any, ...] = ()


def read(path: Path, at: tuple[Any, ...] = ()) -> Source:
    """Read one YAML file; raise ConfigError if it is missing, unreadable, not YAML, too large, or holds several documents."""
    text, where, data = _text(path), str(path), None
    duplicates: list[tuple[int, int, str]] = []
    try:
        _refuse_deep(text)
        loader = _Loader(text)
        try:
            if (root := loader.get_single_node()) is not None:
                _measure(root, {}, duplicates)
                data = loader.construct_document(root)
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
            raise ConfigError(f"{where}: this is not a configuration: it {fault}.", do=error.do) from None
        do = f"Correct {path}. Check the indentation and the space after each colon."
        raise ConfigError(f"{where}: this is not valid YAML: {fault}.", do=do) from None
    return Source(path, data, root, tuple(sorted(duplicates)), at)


def _text(path: Path) -> str:
    """Return the content of a regular file. A pipe or device is refused: each job of a run reads the file again."""
    place, do = (
        f"The configuration file {path}",
        "Check the path (--configfile, or the argument of servemark check) and the file's permissions.",
    )
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            fault, do = "is a folder, a pipe or a device, not a regular file", "Give the path of a YAML file."
        else:
            with path.open("rb") as stream:
                content = stream.read(MAX_BYTES + 1)
            if len(content) <= MAX_BYTES:
                return content.decode()
            fault = f"has more than {MAX_BYTES // 2**20} MiB"
            do = "Check that it is a configuration. Use `sweeps` instead of many similar entries."
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        place, do = f"{path}:{line}:", "Save the file in the encoding UTF-8."
        fault = f"byte {error.start + 1} is not valid UTF-8: 0x{content[error.start]:02x}"
    except (OSError, ValueError) as error:
        fault = f"cannot be read: {getattr(error, 'strerror', None) or error}"
    raise ConfigError(f"{place} {fault}.", do=do)


def _refuse_deep(text: str) -> None:
    """Refuse deep nesting while the parser's events come one by one: libyaml's composer and constructor would crash the interpreter."""
    depth = 0
    for event in yaml.parse(text, Loader=_Parser):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise _Refused(f"is nested deeper than {MAX_DEPTH} levels", event)


def _measure(node: yaml.Node, known: dict[int, tuple[int, int] | None], duplicates: list[tuple[int, int, str]]) -> tuple[int, int]:
    """Return the number of keys and values below ``node`` and the number of its levels, with every alias written out.

    A few aliases can stand for more values than memory holds, so this runs before any object is made of them. It also adds each key that
    a mapping holds twice to ``duplicates``; YAML would silently drop the first. ``known``: results by node, None while a node is measured.
    """
    if id(node) in known:
        if (size := known[id(node)]) is None:
            raise _Refused("contains itself through an alias (*name)", node)
        return size
    known[id(node)] = None
    values, levels = 1, 0
    is_mapping, lines = isinstance(node, yaml.MappingNode), dict[tuple[str, str], int]()
    for child in [one for pair in node.value for one in pair] if is_mapping else node.value if isinstance(node, yaml.SequenceNode) else ():
        more, deeper = _measure(child, known, duplicates)
        values, levels = values + more, max(levels, deeper + 1)
        if values > MAX_VALUES:
            raise _Refused(f"holds more than {MAX_VALUES:,} keys and values, those behind aliases (*name) counted each time", child)
        if levels > MAX_DEPTH:
            raise _Refused(f"is nested deeper than {MAX_DEPTH} levels, aliases (*name) counted", child)
    for key, _ in node.value if is_mapping else ():
        if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
            line, name = key.start_mark.line + 1, (key.tag, key.value)
            if name in lines:
                duplicates.append((line, lines[name], key.value))
            lines.setdefault(name, line)
    known[id(node)] = values, levels
    return values, levels


def value_at(data: Any, loc: Sequence[Any]) -> Any:
    """Return the value at ``loc`` in nested mappings and lists; `MISSING` if there is none."""
    for part in loc:
        try:
            data = data[part]
        except (KeyError, IndexError, TypeError):
            return MISSING
    return data


def _same(here: Any, wanted: Any) -> bool:
    """Return whether two values are equal; NaN counts as equal to NaN."""
    if isinstance(here, list) and isinstance(wanted, list):
        return len(here) == len(wanted) and all(map(_same, here, wanted))
    return bool(here == wanted or (here != here and wanted != wanted))


def find(sources: Sequence[Source], data: Any, loc: Sequence[Any]) -> tuple[int, int] | None:
    """Return (index of the file, line from 1) of the value in effect at ``loc``; None if it came from the command line.

    A later file overrides an earlier one. For a missing key this is the place of the closest entry around it.
    """
    loc = list(loc)
    while loc and value_at(data, loc) is MISSING:
        loc.pop()
    wanted = value_at(data, loc)
    for index, source in reversed(list(enumerate(sources))):
        inside = loc[len(source.at) :]
        here = value_at(source.data, inside)
        # Mappings are merged key by key, so they differ from the file when one key inside was overridden.
        same = _same(here, wanted) or (isinstance(here, dict) and isinstance(wanted, dict))
        if [*source.at, *inside] == loc and same and here is not MISSING:
            return index, _line(source.root, inside)
    return None


def _line(node: yaml.Node | None, loc: Sequence[Any]) -> int:
    """Return the line of ``loc``, or of the entry around a key whose text differs from its value, such as `no`."""
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
    """Return (line from 1, node) by key. Merged keys (`<<`) precede the mapping's own ones, so the last one counts."""
    return {key.value: (key.start_mark.line + 1, value) for key, value in node.value if isinstance(key, yaml.ScalarNode)}
