"""What happens to results: formats of other projects, and a command after the archive."""

import re
import shlex
from collections import Counter
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from servemark.config.field_types import refuse
from servemark.security.secret_scan import PATTERNS, search

PLACE = "{archive}"
ExportName = Literal["inferencex", "llmd-br-0.2.1"]
EXPORT_NAMES: tuple[str, ...] = get_args(ExportName)


def _each_once(names: tuple[str, ...]) -> tuple[str, ...]:
    if twice := next((name for name, count in Counter(names).items() if count > 1), None):
        raise refuse(f"contains {twice} twice")
    return names


Exports = Annotated[tuple[ExportName, ...], AfterValidator(_each_once)]
_PLACEHOLDER = re.compile(r"\{\w*\}")


def _words(value: Any) -> Any:
    """Split a text as a shell does; nothing is expanded, and no shell runs."""
    if value is not None and not isinstance(value, str | list | tuple):
        raise refuse("must be a command as text, or a list of its words")
    if not isinstance(value, str):
        return value
    if "\n" in value.strip():
        raise refuse("has several lines, and servemark starts it without a shell; write one command, or name a script here")
    try:
        return shlex.split(value)
    except ValueError as error:
        raise refuse(f"cannot be split into words: {error}") from None


def _can_run(command: tuple[str, ...]) -> tuple[str, ...]:
    if not all(word.strip() for word in command[:1]):
        raise refuse("begins with an empty word; the first word is the program")
    if odd := next((found for word in command for found in _PLACEHOLDER.findall(word) if found != PLACE), None):
        raise refuse(f"contains {odd}; the only placeholder is {PLACE}")
    # A secret may be split into words, as in the header of a request.
    if secret := search(" ".join(command).encode(), 0, PATTERNS):
        raise refuse(f"contains a secret ({secret[0]}), which records would keep; let the command read it from a file", hide=True)
    return command


Command = Annotated[
    tuple[Annotated[str, Field(strict=True)], ...],
    BeforeValidator(_words),
    Field(min_length=1),
    AfterValidator(_can_run),
    WithJsonSchema({"type": ["string", "array"], "items": {"type": "string"}, "minLength": 1, "minItems": 1}),
]


def with_archive(command: tuple[str, ...], archive: str) -> list[str]:
    """Return the command with the archive's path in place of ``{archive}``, or as its last word."""
    filled = [word.replace(PLACE, archive) for word in command]
    return filled if filled != list(command) else [*filled, archive]
