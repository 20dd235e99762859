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
    ("2", "the configuration is refused, or a name is not known"),
    ("130", "interrupted"),
)

STATISTICS = {
    "mean": "mean",
    "std": "standard deviation",
    "p50": "median",
    "p95": "95th percentile",
    "p99": "99th percentile",
    "max": "largest value",
}
LATENCIES = {
    "ttft": "time to first token",
    "tpot": "mean time per output token after the first, of each request",
    "itl": "time between two chunks of a stream",
    "e2el": "time from the start of a request to its last token",
}

MEANINGS = {
    "deployment": "name of the deployment",
    "workload": "name of the workload",
    "point": "name of the load point",
    "nodes": "nodes of the servers",
    "devices": "ranks over all nodes and replicas",
    "tensor_parallel": "ranks that share every layer",
    "pipeline_parallel": "ranks that each hold some layers",
    "data_parallel": "engines of one server",
    "replicas": "servers behind one address",
    "balancing": "what spreads requests over the engines of a server: `server` or `router`",
    "routing": "how the router chooses; empty without a router",
    "executor": "what starts the ranks: `single`, `mp` or `ray`",
    "client": "node of the client: `head`, or `own`",
    "concurrency": "most requests in flight; empty where only a rate limits them",
    "request_rate_per_s": "requests per second that were asked for; empty without a rate",
    "repetition": "number of the repetition, from 1",
    "seed": "seed of the prompts",
    "input_tokens": "tokens of each prompt, without a prefix that all prompts share",
    "output_tokens": "output tokens of each request",
    "clients": "processes of the client",
    "ask": "target of the requests: `endpoint`, or `replica` past the router",
    "verdict": "VALID, SUSPECT or INVALID",
    "reasons": "codes of the [reasons](reasons.md), separated by spaces",
    "failure": "code of the failure that left the point without a measurement",
    "requests_asked": "requests of the load point",
    "requests_completed": "requests that completed",
    "requests_failed": "requests that failed",
    "duration_s": "length of the measurement; [how it is taken](../explanation/numbers.md#from-requests-to-results)",
    "total_input_tokens": "input tokens of all completed requests, with a shared prefix",
    "total_output_tokens": "output tokens of all completed requests",
    "output_tokens_per_s": "output tokens per second",
    "total_tokens_per_s": "input and output tokens per second",
    "requests_per_s": "completed requests per second",
    **{f"{name}_{key}_ms": f"{words}: {statistic}" for name, words in LATENCIES.items() for key, statistic in STATISTICS.items()},
    **{f"{name}_count": f"{words}: number of values" for name, words in LATENCIES.items()},
    "replica_requests": "requests of each replica, such as `r0=64 r1=66`; empty for one replica",
    "client_cpu_cores": "CPU time of the busiest client process, in cores",
    "started_at": "start of the measurement, UTC",
    "client_node": "node of the client",
    "job_id": "job of the scheduler that measured; empty without one",
    "attempt": "folder of the attempt that measured",
    "key": "ledger key",
    "raw": "file with the per-request results",
    "raw_sha256": "sha256 of that file",
}
"""Column -> what it holds."""


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
    return f"`{column.name}`", kind, "yes" if column.figure else "", MEANINGS[column.name]


def command_line(parser: argparse.ArgumentParser) -> str:
    """Return the page of a command with subcommands."""
    return _page(
        "Command line",
        "the argument parser",
        "`make setup` installs the command as `.venv/bin/servemark`. Call it in the checkout.",
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
