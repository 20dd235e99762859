"""The generated files: JSON schemas and documents in docs/reference, from the types, tables and parsers that they describe.

Only the tables in docs/reference/configuration.md are generated; the other documents are generated as a whole.
"""

import argparse
import json
import typing
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from servemark import diagnosis
from servemark.config.cluster import Site
from servemark.config.model import Config
from servemark.config.workload import Load, PrefixWorkload, RandomWorkload, StagedWorkload, Workload
from servemark.measurement import reasons
from servemark.records import ALL_RECORDS, Record, schemas
from servemark.records.base import MOST, write_atomically
from servemark.report.columns import COLUMNS

PAGES = Path("docs", "reference")
CONFIGURATION = PAGES / "configuration.md"
MARKS: dict[type[BaseModel], tuple[str, str]] = {
    Config: ("<!-- keys: generated from the types -->", "<!-- keys: end -->"),
    Site: ("<!-- cluster keys: generated from the types -->", "<!-- cluster keys: end -->"),
}
"""The lines before and after a type's tables in configuration.md."""
WORKLOADS: tuple[tuple[str, type[Load]], ...] = (
    ("dataset: random", RandomWorkload),
    ("dataset: file, sharegpt or hf", StagedWorkload),
    ("dataset: prefix", PrefixWorkload),
)
"""The forms of a workload, as headings name them, and their types."""
EXIT_CODES = (
    ("0", "success"),
    ("1", "failure; the message states the reason"),
    ("2", "an argument or the configuration is refused, or a check found a problem; nothing was started"),
    ("130", "interrupted"),
)


def write(root: Path) -> None:
    """Write every generated file below ``root``, the top folder of a checkout."""
    for path, text in texts(root).items():
        write_atomically(root / path, text)


def texts(root: Path) -> dict[Path, str]:
    """Return the text of every generated file by its path below ``root``, where configuration.md must exist."""
    # A local import, because the command imports this module.
    from servemark.cli.main import _parser

    user_files: dict[str, type[BaseModel]] = {"schema.json": Config, "cluster.schema.json": Site}
    return {
        **{Path("config", name): json.dumps(json_schema(model), indent=2, ensure_ascii=False) + "\n" for name, model in user_files.items()},
        **{Path("workflow", "schemas", name): text for name, text in schemas.texts().items()},
        CONFIGURATION: with_tables((root / CONFIGURATION).read_text(encoding="utf-8")),
        PAGES / "columns.md": columns(),
        PAGES / "command-line.md": command_line(_parser()),
        PAGES / "reasons.md": reason_codes(),
        PAGES / "records.md": records(),
    }


# configuration


def json_schema(model: type[BaseModel] = Config) -> dict[str, Any]:
    """Return the JSON schema (draft 2020-12) of a configuration or cluster file; it has no references between sections."""
    schema = model.model_json_schema(mode="validation")
    _tidy(schema)
    title = "servemark configuration" if model is Config else "servemark cluster file"
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title, **schema}


def _tidy(node: Any) -> None:
    """Remove the titles that pydantic makes up, and close mappings whose names have a pattern."""
    if isinstance(node, dict):
        if isinstance(node.get("title"), str):
            del node["title"]
        node |= {"additionalProperties": False} if "patternProperties" in node else {}
    for inner in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        _tidy(inner)


def with_tables(page: str) -> str:
    """Return the text of configuration.md with new tables between their marks; raise ValueError if a mark is missing."""
    for model, (first, last) in MARKS.items():
        head, begin, rest = page.partition(first)
        _, end, tail = rest.partition(last)
        if not begin or not end:
            raise ValueError(f"{CONFIGURATION} lacks the line {last if begin else first}")
        page = "\n".join([f"{head}{first}", "", *key_table(model), "", f"{last}{tail}"])
    return page


def key_table(model: type[BaseModel] = Config) -> list[str]:
    """Return the table of every key, in the order of the types, and for a configuration one further table for each form of a workload."""
    schema = json_schema(model)
    defs = schema["$defs"]
    keys = _keys(model, schema, defs, "")
    lines = _rows(keys, defs)
    if model is Config:
        for forms, kind in WORKLOADS:
            own = _keys(kind, defs[kind.__name__], defs, "workloads.NAME.")
            lines += ["", f"### A workload with {forms}", "", f"{kind.__doc__} The keys of `workloads.NAME` in the first table apply too."]
            lines += ["", *_rows([row for row in own if not any(row[::2] == known[::2] for known in keys)], defs)]
    return lines


_Key = tuple[str, FieldInfo, dict[str, Any]]
"""A key with its prefix, its field, and its part of the schema."""


def _rows(keys: list[_Key], defs: dict[str, Any]) -> list[str]:
    rows = ((f"`{key}`", _type(part, defs), _default(field), field.description or "") for key, field, part in keys)
    return _table(("key", "type", "default", "meaning"), rows)


def _keys(model: type[BaseModel], schema: dict[str, Any], defs: dict[str, Any], prefix: str) -> list[_Key]:
    found = []
    for name, field in model.model_fields.items():
        key, part, inner = prefix + name, schema["properties"][name], field.annotation
        found.append((key, field, part))
        if typing.get_origin(inner) is dict:
            inner, key = typing.get_args(inner)[1], f"{key}.NAME"
        elif typing.get_origin(inner) is tuple:
            inner, key = typing.get_args(inner)[0], f"{key}[]"
        elif any("$ref" in choice for choice in part.get("anyOf", ())):
            # A section that may be absent, or a word in its place.
            inner = next(iter(typing.get_args(inner)), inner)
        if inner == Workload:
            # The keys that all forms share. Their schema is the same in each form.
            found += _keys(Load, defs[RandomWorkload.__name__], defs, f"{key}.")
        elif isinstance(inner, type) and issubclass(inner, BaseModel):
            found += _keys(inner, defs[inner.__name__], defs, f"{key}.")
    return found


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


# the other documents


def columns() -> str:
    """Return the document about the columns of ``measurements.csv``."""
    kinds = {"string": "text", "Int64": "whole number", "float64": "number"}
    rows = ((f"`{one.name}`", kinds[one.dtype], "yes" if one.figure else "", one.meaning) for one in COLUMNS)
    return _page(
        "Table columns",
        "report/columns.py",
        "`measurements.csv` and `measurements.parquet` have one row for each load point and these columns.",
        "*Result* columns are empty for an INVALID measurement. All columns ending in `_ms` are milliseconds.",
        "",
        *_table(("column", "type", "result", "meaning"), rows),
    )


def reason_codes() -> str:
    """Return the document about all reasons, from their table and from the catalogue of causes in logs."""
    rows = reasons.TABLE.values()
    verdicts = [(f"`{row.code}`", " or ".join(row.severities), row.meaning, row.remedy or "") for row in rows if row.severities]
    outside = [(f"`{row.code}`", row.meaning, row.remedy or "Do what the message states.") for row in rows if row.outside]
    failures = [(f"`{row.code}`", row.meaning) for row in rows if not row.severities and not row.outside]
    logs = [(f"`{row.reason}`", row.cause, row.remedy) for row in diagnosis.catalogue()]
    return _page(
        "Reasons",
        "measurement/reasons.yaml and diagnosis/catalogue.yaml",
        "Records, tables, reports and messages name these codes.",
        "",
        "Some codes, such as `port_taken`, have a row in two tables: servemark finds the problem itself, or a log of vLLM, Ray or Slurm "
        "shows it.",
        *("", "## Verdicts on a load point", "", *_table(("code", "verdict", "meaning", "what to do"), verdicts)),
        *("", "## From outside", ""),
        "These reasons do not depend on the load point. servemark always measures the point again.",
        *("", *_table(("code", "meaning", "what to do"), outside)),
        *("", "## Failures that a log explains", "", *_table(("code", "cause", "what to do"), logs)),
        *("", "## Other failures and refusals", "", "The message states what to do."),
        *("", *_table(("code", "meaning"), failures)),
    )


def command_line(parser: argparse.ArgumentParser) -> str:
    """Return the document about a command with subcommands."""
    return _page(
        "Command line",
        "the argument parser",
        "`make setup` installs the command as `.venv/bin/servemark`. Call it in the checkout. `servemark --version` prints the version.",
        "[Running](running.md) lists the commands of Snakemake.",
        "",
        *_table(("exit code", "meaning"), EXIT_CODES),
        *_commands(parser),
    )


def _commands(parser: argparse.ArgumentParser) -> Iterator[str]:
    (group,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    for choice in group._choices_actions:
        call, text = f"{parser.prog} {choice.dest}", choice.help or ""
        arguments = [one for one in group.choices[choice.dest]._actions if not isinstance(one, argparse._HelpAction)]
        words = " ".join([call, *(_usage(one) if one.required else f"[{_usage(one)}]" for one in arguments)])
        yield from ("", f"## {call}", "", f"{text[:1].upper()}{text[1:]}.", "", f"    {words}")
        if arguments:
            defaults = {one.dest: f"default: `{one.default}`" if one.default else "" for one in arguments}
            yield from ("", *_table(("argument", "meaning"), ((f"`{_usage(one)}`", one.help or defaults[one.dest]) for one in arguments)))


def _usage(action: argparse.Action) -> str:
    value = str(action.metavar or action.dest.upper())
    if not action.option_strings:
        return f"{value} ..." if action.nargs == "+" else value
    return action.option_strings[-1] if action.nargs == 0 else f"{action.option_strings[-1]} {value}"


def records() -> str:
    """Return the document about all record types."""
    return _page(
        "Records",
        "the types in records/",
        "Every record is a JSON file with `kind` and `version`. `workflow/schemas/KIND.schema.json` is its JSON schema.",
        "A type such as `Failure` is a nested part that the schema describes.",
        *(line for record in sorted(ALL_RECORDS, key=lambda one: one.KIND) for line in _record(record)),
    )


def _record(record: type[Record]) -> list[str]:
    parts = schemas.record_schema(record)["properties"]
    rows = [(f"`{name}`", _type(parts[name]), field.description or "") for name, field in record.model_fields.items()]
    text = " ".join((record.__doc__ or "").split("\n\n")[0].split())
    return ["", f"## {record.KIND}", "", f"{text} Version {record.VERSION}.", "", *_table(("field", "type", "meaning"), rows)]


# Markdown

_WORDS = {"string": "text", "integer": "whole number", "boolean": "true or false"}
_PLURALS = {"mapping": "mappings", "any value": "values"}


def _type(part: dict[str, Any], defs: dict[str, Any] | None = None) -> str:
    """Return a schema in a few words: "whole number >= 1", "list of text", "`mp` or `ray`".

    With ``defs``, the definitions of the schema, a nested type is a mapping, because its keys follow in the same table. Null is left out,
    because it is the default. Without ``defs``, a nested type has its name.
    """
    if "$ref" in part:
        name = part["$ref"].rsplit("/", 1)[-1]
        return _type(defs[name], defs) if defs else f"`{name}`"
    if several := part.get("anyOf") or part.get("oneOf"):
        return " or ".join(dict.fromkeys(_type(one, defs) for one in several if not (defs and one == {"type": "null"})))
    if "const" in part or "enum" in part:
        return " or ".join(f"`{value}`" for value in part.get("enum", [part.get("const")]))
    kind = part.get("type", "any value")
    if isinstance(kind, list):
        return "value or list" if "array" in kind else " or ".join(str(_WORDS.get(one, one)) for one in kind)
    if kind == "array":
        item = _type(part.get("items", {}), defs)
        return f"list of {_PLURALS.get(item, item)}"
    if kind == "object":
        inner = next(iter(part.get("patternProperties", {}).values()), part.get("additionalProperties"))
        values = _type(inner, defs) if isinstance(inner, dict) and inner else ""
        return f"mapping of names to {_PLURALS.get(values, values)}" if values else "mapping"
    words, low, high = str(_WORDS.get(kind, kind)), part.get("minimum"), part.get("maximum")
    # configuration.md states the common upper bound once.
    if low is not None and high not in (None, MOST):
        return f"{words} from {low:g} to {high:g}"
    signs = {"minimum": ">=", "exclusiveMinimum": ">"}
    return " ".join([words, *(f"{sign} {part[name]:g}" for name, sign in signs.items() if name in part)])


def _page(title: str, source: str, *lines: str) -> str:
    return "\n".join((f"# {title}", "", f"<!-- Written by `make generate` from {source}. -->", "", *lines, ""))


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    def line(cells: Iterable[str]) -> str:
        return "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |"

    return [line(head), line(["---"] * len(head)), *map(line, rows)]
