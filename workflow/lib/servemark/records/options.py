"""Options of vLLM's command line, as its parsers state them."""

from typing import Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from servemark.records.base import Strict


class Argument(Strict):
    """One option of `vllm serve` or `vllm bench serve`. A record leaves out what has its default."""

    names: tuple[str, ...] = Field(description="long spellings without dashes; of a switch, its negation too")
    kind: Literal["switch", "flag", "text", "integer", "size", "size_or_auto", "number", "json", "json_or_text", "any"] = Field(
        default="any",
        description="value: `switch` (true or false), `flag` (true), `size` (a whole number, or one such as 16k or 16K), `any`: not known",
    )
    count: Literal["one", "optional", "many", "any"] = Field(
        default="one", description="number of values: `one`, `optional` (0 or 1), `many` (1 or more), `any` (0 or more)"
    )
    none: bool = Field(default=False, description="`None` is a value too")
    choices: tuple[str, ...] = Field(default=(), description="the allowed values; empty: not limited to a list")
    keys: dict[str, tuple[str, ...]] = Field(
        default={},
        description="keys of the JSON object, those inside with a dot -> their allowed values (empty: any); empty: the parser names none",
    )
    least: float | None = Field(default=None, description="smallest value")
    above: float | None = Field(default=None, description="number that the value must exceed")
    most: float | None = Field(default=None, description="largest value")
    below: float | None = Field(default=None, description="number that the value must stay below")

    @model_serializer(mode="wrap")
    def _short(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        defaults = {name: field.default for name, field in type(self).model_fields.items()}
        return {name: value for name, value in handler(self).items() if getattr(self, name) != defaults[name]}
