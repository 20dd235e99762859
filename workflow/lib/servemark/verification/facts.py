"""Two statements of one fact, and the sentence that names both files if they differ."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from servemark.errors import ServemarkError


class Stated(NamedTuple):
    """A value and the file that states it."""

    file: str
    value: Any


@dataclass(frozen=True)
class NotChecked:
    """A fact that this archive does not hold, in words."""

    text: str


Finding = str | NotChecked


def differ(what: str, one: Stated, other: Stated, *, common: bool = False) -> Iterator[str]:
    """Yield one sentence for each value that differs, with both files and both values.

    Args:
        what: the subject of the sentence, such as ``plain chat-c1-r1: key_parts``.
        common: compare only names that both mappings have. Another version may leave names out, or write more of them.
    """
    if isinstance(one.value, Mapping) and isinstance(other.value, Mapping):
        names = [name for name in one.value if name in other.value] if common else list(dict.fromkeys((*one.value, *other.value)))
        for name in names:
            pair = (Stated(side.file, side.value.get(name)) for side in (one, other))
            yield from differ(f"{what}: {name}", *pair, common=common)
    elif _plain(one.value) != _plain(other.value):
        yield f"{what}: {one.file} states {words(one.value)}, {other.file} states {words(other.value)}."


def _plain(value: Any) -> Any:
    """Return tuples as lists, as JSON has them."""
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def arguments(argv: Sequence[str]) -> dict[str, list[str]]:
    """Return the options of a command line, without dashes and in kebab case -> their values."""
    found: dict[str, list[str]] = {}
    name = ""
    for word in argv:
        if word.startswith("--"):
            name = word[2:].replace("_", "-")
            found.setdefault(name, [])
        elif name:
            found[name].append(word)
    return found


def words(value: Any) -> str:
    """Return a value as JSON of at most 120 characters; ``nothing`` for None."""
    if value is None:
        return "nothing"
    text = value if isinstance(value, str) and value else json.dumps(value, default=str)
    return text if len(text) <= 120 else text[:117] + "..."


def guarded(what: str, findings: Iterator[Finding] | Iterator[str]) -> Iterator[Finding]:
    """Yield the findings of a check. If the records of an untrusted archive end it, yield why, so that the other checks go on."""
    try:
        yield from findings
    except (ServemarkError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError, OSError) as error:
        yield f"{what} cannot be compared: {type(error).__name__}: {str(error)[:200]}"
