"""The reference pages of table columns, of the ``servemark`` command and of records, written from the code that they describe.

The page of reasons is :mod:`servemark.cli.reference`; the tables of configuration keys are :mod:`servemark.config.document`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from servemark.records import ALL_RECORDS, Record, schemas
from servemark.report.columns import COLUMNS, Column

FOLDER = Path("docs", "reference")

EXIT_CODES = (
    ("0", "done"),
    ("1", "it could not be done, or something is wrong; the message states what"),
    ("2", "an argument or the configuration is refused, or a check found a problem; nothing was started"),
    ("130", "interrupted"),
)


def write(root: Path) -> None:
    """Write the pages below ``root``, the top folder of a checkout."""
    for name, text in texts().items():
        path = root / FOLDER / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def texts() -> dict[str, str]:
    """Return file name -> Markdown of every page."""
    # Here, because the command imports this module.
    from servemark.cli.main import _parser

    return {"columns.md": columns(), "command-line.md": command_line(_parser()), "records.md": records()}


def columns() -> str:
    """Return the page of the columns of ``measurements.csv``."""
    return _page(
        "Table columns",
        "report/columns.py",
        "`measurements.csv` and `measurements.parquet` have one row for each load point and these columns.",
        "*Result* columns are empty for an INVALID measurement. All columns ending in `_ms` are milliseconds.",
        "",
        *_table(("column", "type", "result", "meaning"), (_column(column) for column in COLUMNS)),
    )


def _column(column: Column) -> tuple[str, ...]:
    kind = {"string": "text", "Int64": "whole number", "float64": "number"}[column.dtype]
    return f"`{column.name}`", kind, "yes" if column.figure else "", column.meaning


def command_line(parser: argparse.ArgumentParser) -> str:
    """Return the page of a command with subcommands."""
    return _page(
        "Command line",
        "the argument parser",
        "`make setup` installs the command as `.venv/bin/servemark`. Call it in the checkout. `servemark --version` prints the version.",
        "[Running](running.md) lists the commands of Snakemake.",
        "",
        *_table(("exit code", "meaning"), EXIT_CODES),
        *(line for name, help_text, one in _commands(parser) for line in _command(f"{parser.prog} {name}", help_text, one)),
    )


def _commands(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str, argparse.ArgumentParser]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {choice.dest: choice.help or "" for choice in action._choices_actions}
            yield from ((name, helps[name], one) for name, one in action.choices.items())


def _command(call: str, help_text: str, parser: argparse.ArgumentParser) -> list[str]:
    arguments = [action for action in parser._actions if not isinstance(action, argparse._HelpAction)]
    rows = [(f"`{_usage(action)}`", action.help or _default(action)) for action in arguments]
    text = f"{help_text[:1].upper()}{help_text[1:]}."
    words = " ".join([call, *(_usage(action) if action.required else f"[{_usage(action)}]" for action in arguments)])
    return ["", f"## {call}", "", text, "", f"    {words}", *(["", *_table(("argument", "meaning"), rows)] if rows else [])]


def _usage(action: argparse.Action) -> str:
    value = str(action.metavar or action.dest.upper())
    if not action.option_strings:
        return value
    return action.option_strings[-1] if action.nargs == 0 else f"{action.option_strings[-1]} {value}"


def _default(action: argparse.Action) -> str:
    return f"default: `{action.default}`" if action.default else ""


def records() -> str:
    """Return the page of all record types."""
    return _page(
        "Records",
        "the types in records/",
        "Every record is a JSON file with `kind` and `version`. `workflow/schemas/KIND.schema.json` is its JSON schema.",
        "A type such as `Failure` is a nested part that the schema describes.",
        *(line for record in sorted(ALL_RECORDS, key=lambda one: one.KIND) for line in _record(record)),
    )


def _record(record: type[Record]) -> list[str]:
    schema = schemas.record_schema(record)
    fields = {name: part for name, part in schema["properties"].items() if name not in ("kind", "version")}
    rows = ((f"`{name}`", _type(part), record.model_fields[name].description or "") for name, part in fields.items())
    text = " ".join((record.__doc__ or "").split("\n\n")[0].split())
    return ["", f"## {record.KIND}", "", f"{text} Version {record.VERSION}.", "", *_table(("field", "type", "meaning"), rows)]


def _type(part: dict[str, Any]) -> str:
    """Return the type of a JSON schema in a few words."""
    if "$ref" in part:
        return f"`{part['$ref'].rsplit('/', 1)[-1]}`"
    if several := part.get("anyOf") or part.get("oneOf"):
        return " or ".join(dict.fromkeys(_type(one) for one in several))
    if "enum" in part or "const" in part:
        return " or ".join(f"`{value}`" for value in part.get("enum", [part.get("const")]))
    match part.get("type"):
        case "array":
            return f"list of {_type(part['items'])}" if part.get("items") else "list"
        case "object":
            inner = part.get("additionalProperties")
            return f"mapping to {_type(inner)}" if isinstance(inner, dict) and inner else "mapping"
        case kind:
            return {"string": "text", "integer": "whole number", "number": "number", "boolean": "true or false", "null": "null"}.get(
                str(kind), "any"
            )


def _page(title: str, source: str, *lines: str) -> str:
    return "\n".join((f"# {title}", "", f"<!-- Written by `make generate` from {source}. -->", "", *lines, ""))


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    def line(cells: Iterable[str]) -> str:
        return "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |"

    return [line(head), line(["---"] * len(head)), *map(line, rows)]
