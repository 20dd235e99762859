"""The JSON schemas of configuration and cluster file and the tables of their keys, made from the types."""

from __future__ import annotations

import json
import typing
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from servemark.config.cluster import Site
from servemark.config.model import Config
from servemark.config.workload import KINDS, Workload
from servemark.records.base import MOST, write_atomically

DOCUMENTS: dict[type[BaseModel], tuple[str, str]] = {Config: ("keys", "schema.json"), Site: ("cluster keys", "cluster.schema.json")}
"""Word in the marks around the table of the page, and name of the schema's file."""
PAGE = Path("docs", "reference", "configuration.md")
"""The page with the tables, in a checkout."""


def marks(model: type[BaseModel]) -> tuple[str, str]:
    """Return the lines around a type's table in the page."""
    word = DOCUMENTS[model][0]
    return f"<!-- {word}: generated from the types -->", f"<!-- {word}: end -->"


def json_schema(model: type[BaseModel] = Config) -> dict[str, Any]:
    """Return a file of the user's as a JSON schema, draft 2020-12; references and cross checks are left out."""
    schema = model.model_json_schema(mode="validation")
    _tidy(schema)
    schema.pop("title", None)
    title = "servemark configuration" if model is Config else "servemark cluster file"
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title, **schema}


def _tidy(node: Any) -> None:
    """Drop pydantic's made-up titles, and close mappings whose names have a pattern."""
    if isinstance(node, dict):
        if isinstance(node.get("title"), str):
            del node["title"]
        node |= {"additionalProperties": False} if "patternProperties" in node else {}
    for inner in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        _tidy(inner)


def key_table(model: type[BaseModel] = Config) -> str:
    """Return markdown table of every key: key, type, default, meaning; in the order of the types."""
    schema = json_schema(model)
    rows = ["| key | type | default | meaning |", "|---|---|---|---|"]
    for key, field, part in _keys(model, schema, schema["$defs"], ""):
        cells = (f"`{key}`", _type(part, schema["$defs"]), _default(field), field.description or "")
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows)


def _keys(model: type[BaseModel], schema: dict[str, Any], defs: dict[str, Any], prefix: str) -> list[tuple[str, FieldInfo, dict[str, Any]]]:
    found = []
    for name, field in model.model_fields.items():
        key, part, inner = prefix + name, schema["properties"][name], field.annotation
        found.append((key, field, part))
        if typing.get_origin(inner) is dict:
            inner, key = typing.get_args(inner)[1], f"{key}.NAME"
        elif typing.get_origin(inner) is tuple:
            inner, key = typing.get_args(inner)[0], f"{key}[]"
        for kind in KINDS.values() if inner == Workload else (inner,):
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                # What several kinds of workload have in common stands once.
                rows = _keys(kind, defs[kind.__name__], defs, f"{key}.")
                found += [row for row in rows if not any(row[::2] == known[::2] for known in found)]
    return found


_WORDS = {"string": "text", "integer": "whole number", "number": "number", "boolean": "true or false", "null": "nothing"}
_PLURALS = {"mapping": "mappings", "any value": "values"}


def _type(part: dict[str, Any], defs: dict[str, Any]) -> str:
    """Return a schema in a few words: "whole number >= 1", "list of text", "`mp` or `ray`"."""
    if "$ref" in part:
        return _type(defs[part["$ref"].rsplit("/", 1)[-1]], defs)
    if "anyOf" in part:
        return " or ".join(dict.fromkeys(_type(one, defs) for one in part["anyOf"] if one != {"type": "null"}))
    if "const" in part or "enum" in part:
        return " or ".join(f"`{value}`" for value in part.get("enum", [part.get("const")]))
    kind = part.get("type")
    if isinstance(kind, list):
        return "value or list" if "array" in kind else " or ".join(_WORDS[one] for one in kind)
    if kind == "array":
        item = _type(part.get("items", {}), defs)
        return f"list of {_PLURALS.get(item, item)}"
    if kind == "object":
        inner = next(iter(part.get("patternProperties", {}).values()), part.get("additionalProperties"))
        named = isinstance(inner, dict) and "properties" not in part and not {"$ref", "oneOf"} & inner.keys()
        return f"mapping of names to {_type(inner, defs)}" if named and inner else "mapping"
    words, low, high = _WORDS.get(kind or "", "any value"), part.get("minimum"), part.get("maximum")
    # The common upper bound stands above the table, once.
    if low is not None and high not in (None, MOST):
        return f"{words} from {low:g} to {high:g}"
    signs = {"minimum": ">=", "exclusiveMinimum": ">"}
    return " ".join([words, *(f"{sign} {part[name]:g}" for name, sign in signs.items() if name in part)])


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    if field.default is PydanticUndefined:
        return "derived" if field.default_factory_takes_validated_data else "see its keys"
    if field.default is None or field.default in ((), {}):
        return "none"
    if isinstance(field.default, bool):
        return f"`{json.dumps(field.default)}`"
    return f"`{field.default:g}`" if isinstance(field.default, float) else f"`{field.default}`"


def page_text(current: str) -> str:
    """Return ``current`` with the tables of keys between their marks renewed; raise ValueError if a mark is missing."""
    for model in DOCUMENTS:
        first, last = marks(model)
        head, begin, rest = current.partition(first)
        _, end, tail = rest.partition(last)
        if not begin or not end:
            raise ValueError(f"the text lacks the line {last if begin else first}")
        current = f"{head}{first}\n\n{key_table(model)}\n\n{last}{tail}"
    return current


def write(folder: Path, page: Path) -> None:
    """Write the schemas into ``folder`` and the tables of ``page``."""
    for model, (_, name) in DOCUMENTS.items():
        write_atomically(folder / name, json.dumps(json_schema(model), indent=2, ensure_ascii=False) + "\n")
    write_atomically(page, page_text(page.read_text(encoding="utf-8")))
