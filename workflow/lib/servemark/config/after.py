"""What happens to results: formats of other projects, and a command after the archive."""

import shlex
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from servemark.config.field_types import distinct, refuse

PLACE = "{archive}"
ExportName = Literal["inferencex", "llmd-br-0.2.1"]
EXPORT_NAMES: tuple[str, ...] = get_args(ExportName)
Exports = Annotated[tuple[ExportName, ...], AfterValidator(distinct)]


def _words(value: Any) -> Any:
    """Split a text as a shell does; nothing is expanded, and no shell runs."""
    if value is not None and not isinstance(value, str | list | tuple):
        raise refuse("must be a command as text, or a list of its words")
    if not isinstance(value, str):
        return value
    try:
        return shlex.split(value)
    except ValueError as error:
        raise refuse(f"cannot be split into words: {error}") from None


Command = Annotated[
    tuple[Annotated[str, Field(strict=True)], ...],
    BeforeValidator(_words),
    Field(min_length=1),
    WithJsonSchema({"type": ["string", "array"], "items": {"type": "string"}, "minLength": 1, "minItems": 1}),
]


def with_archive(command: tuple[str, ...], archive: str) -> list[str]:
    """Return the command with the archive's path in place of ``{archive}``, or as its last word."""
    filled = [word.replace(PLACE, archive) for word in command]
    return filled if filled != list(command) else [*filled, archive]
