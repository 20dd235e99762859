"""The tidy table: one row a measurement, units in the column names, INVALID rows without figures."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from servemark.records import Accounting, Measurement, Topology, write_atomically
from servemark.report import formatting

STATISTICS = ("mean", "std", "p50", "p95", "p99", "max")
LATENCIES = tuple(f"{metric}_{statistic}_ms" for metric in formatting.METRICS for statistic in STATISTICS)
FIGURES = ("requests_per_s", "output_tokens_per_s", "total_tokens_per_s", *LATENCIES)
LOAD = ("deployment", "workload", "concurrency", "request_rate_per_s")
TOPOLOGY = {
    "nodes": "Int64",
    "devices": "Int64",
    "tensor_parallel": "Int64",
    "pipeline_parallel": "Int64",
    "data_parallel": "Int64",
    "replicas": "Int64",
    "balancing": "string",
    "routing": "string",
    "executor": "string",
    "client": "string",
}
"""``nodes`` are those of the servers, ``devices`` the ranks over all of them, ``balancing`` who spreads requests over the data parallel
engines of a server, ``routing`` how the router spreads them (empty without one), ``client`` where the load comes from."""

SCHEMA: dict[str, str] = {
    "deployment": "string",
    "workload": "string",
    "point": "string",
    **TOPOLOGY,
    "concurrency": "Int64",
    "request_rate_per_s": "float64",
    "repetition": "Int64",
    "seed": "Int64",
    "input_tokens": "Int64",
    "output_tokens": "Int64",
    "clients": "Int64",
    "ask": "string",
    "verdict": "string",
    "reasons": "string",
    "failure": "string",
    "requests_asked": "Int64",
    "requests_completed": "Int64",
    "requests_failed": "Int64",
    "duration_s": "float64",
    "total_input_tokens": "Int64",
    "total_output_tokens": "Int64",
    **dict.fromkeys(FIGURES, "float64"),
    **{f"{metric}_count": "Int64" for metric in formatting.METRICS},
    "replica_requests": "string",
    "client_cpu_cores": "float64",
    "started_at": "string",
    "client_node": "string",
    "job_id": "string",
    "attempt": "string",
    "key": "string",
    "raw": "string",
    "raw_sha256": "string",
}


def tidy(measurements: Sequence[Measurement], accounts: Iterable[Accounting] = ()) -> pd.DataFrame:
    """Return one row a measurement, columns and types of ``SCHEMA``, ordered by deployment, workload, load and repetition.

    Every figure of an INVALID measurement is empty, whatever its record holds. ``reasons`` and ``failure`` hold codes;
    the sentences stay in the records. ``job_id`` is the scheduler's job that the attempt ran in, as ``accounts`` tell.
    ``input_tokens`` are those asked of each prompt; ``total_input_tokens`` holds a prefix of all prompts (``random-prefix-len``) too.
    ``replica_requests`` reads ``r0=64 r1=66``: empty for one replica. ``clients`` are processes of the client, ``client_cpu_cores`` what
    the busiest of them used.
    """
    jobs = {attempt: job.job_id for account in accounts for job in account.jobs for attempt in job.attempts}
    return pd.DataFrame([_row(item, jobs) for item in ordered(measurements)], columns=list(SCHEMA)).astype(SCHEMA)


def ordered(measurements: Sequence[Measurement]) -> list[Measurement]:
    """Return the measurements in the row order of ``tidy``."""
    return sorted(measurements, key=_order)


def _order(item: Measurement) -> tuple[Any, ...]:
    at = item.load
    load = (at.concurrency is None, at.concurrency or 0, at.request_rate is not None, at.request_rate or 0.0)
    return (item.deployment, at.workload, *load, at.repetition, at.name)


def topology(item: Measurement) -> dict[str, Any]:
    """Return the ``TOPOLOGY`` columns of one measurement, from the parts of its ledger key; empty where they do not tell."""
    parts = item.key_parts.get("deployment", {}).get("topology")
    if not parts:
        return {}
    shape = Topology.model_validate(parts)
    routing = shape.routing if shape.routed else None
    return {"devices": shape.world_size, **shape.model_dump(include=set(TOPOLOGY)), "routing": routing}


def sorted_replicas(item: Measurement) -> dict[str, int]:
    """Return requests by replica, r2 before r10; none where there is only one replica."""
    if len(item.replica_requests) < 2:
        return {}
    return dict(sorted(item.replica_requests.items(), key=lambda pair: (len(pair[0]), pair[0])))


def _row(item: Measurement, jobs: Mapping[str, str]) -> dict[str, Any]:
    row: dict[str, Any] = {
        **topology(item),
        "deployment": item.deployment,
        "workload": item.load.workload,
        "point": item.load.name,
        "concurrency": item.load.concurrency,
        "request_rate_per_s": item.load.request_rate,
        "repetition": item.load.repetition,
        "seed": item.load.seed,
        "input_tokens": item.load.prompts.input_tokens,
        "output_tokens": item.load.prompts.output_tokens,
        "clients": item.load.clients,
        "ask": item.load.ask,
        "verdict": item.verdict,
        "reasons": " ".join(reason.code for reason in item.reasons) or None,
        "failure": item.failure.reason if item.failure else None,
        "requests_asked": item.load.requests,
        "requests_completed": item.completed,
        "requests_failed": item.failed,
        "replica_requests": " ".join(f"{name}={count}" for name, count in sorted_replicas(item).items()) or None,
        "started_at": item.started_at,
        "client_node": item.client_node,
        "job_id": jobs.get(item.attempt or ""),
        "attempt": item.attempt,
        "key": item.key,
        "raw": item.raw,
        "raw_sha256": item.raw_sha256,
    }
    if item.verdict == "INVALID":
        return row
    row |= {
        "duration_s": item.duration_s,
        "total_input_tokens": item.total_input_tokens,
        "total_output_tokens": item.total_output_tokens,
        "requests_per_s": item.request_throughput,
        "output_tokens_per_s": item.output_throughput,
        "total_tokens_per_s": item.total_throughput,
        "client_cpu_cores": item.client_cpu,
    }
    for metric in formatting.METRICS:
        summary = getattr(item, f"{metric}_ms")
        if summary is not None:
            row[f"{metric}_count"] = summary.count
            row |= {f"{metric}_{statistic}_ms": getattr(summary, statistic) for statistic in STATISTICS}
    return row


def aggregate(frame: pd.DataFrame) -> pd.DataFrame:
    """Return one row per deployment, workload and load: ``FIGURE_median``, ``_min`` and ``_max`` over accepted repetitions.

    ``repetitions_asked`` counts all rows of ``frame`` at that load, ``repetitions_accepted`` the VALID and SUSPECT
    ones, ``repetitions_suspect`` the SUSPECT ones. Row order is that of ``tidy``; figures are empty where none was
    accepted.
    """
    # A function for each group would take seconds where there are thousands of groups.
    marked = frame.assign(accepted=frame["verdict"] != "INVALID", suspect=frame["verdict"] == "SUSPECT")
    groups = marked.groupby(list(LOAD), dropna=False, sort=False)
    counts = groups.agg(
        repetitions_asked=("verdict", "size"),
        repetitions_accepted=("accepted", "sum"),
        repetitions_suspect=("suspect", "sum"),
    )
    figures = groups[list(FIGURES)].agg(["median", "min", "max"])
    figures.columns = [f"{figure}_{statistic}" for figure, statistic in figures.columns]
    return counts.astype("Int64").join(figures).reset_index()


def rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows as dictionaries, with ``None`` for every missing value."""
    found: list[dict[str, Any]] = frame.astype(object).where(frame.notna(), None).to_dict("records")
    return found


def write_csv(frame: pd.DataFrame, path: str | os.PathLike[str]) -> None:
    """Write ``frame`` as CSV, see :func:`csv_text`."""
    write_atomically(path, csv_text(frame))


def csv_text(frame: pd.DataFrame) -> str:
    """Return ``frame`` as CSV with the shortest digits that give the same float back.

    Text that a spreadsheet would run as a formula (it begins with ``=``, ``+``, ``-``, ``@``, tab or carriage return)
    gets an apostrophe in front: https://owasp.org/www-community/attacks/CSV_Injection
    """
    safe = frame.copy()
    for column in safe.select_dtypes("string"):
        guarded = safe[column].str.replace(r"\A([=+\-@\t\r])", r"'\1", regex=True)
        # The csv module before Python 3.13 leaves a carriage return unquoted, and readers take it for the end of a row.
        safe[column] = guarded.str.replace("\r", "\n")
    return str(safe.to_csv(index=False, lineterminator="\n"))


def write_parquet(frame: pd.DataFrame, path: str | os.PathLike[str]) -> None:
    """Write ``frame`` as Parquet, typed, without an index."""
    buffer = io.BytesIO()
    frame.to_parquet(buffer, index=False)
    write_atomically(path, buffer.getvalue())


_TERMINAL = (
    ("out tok/s", 10, "output_tokens_per_s"),
    ("TTFT p50", 9, "ttft_p50_ms"),
    ("TTFT p99", 9, "ttft_p99_ms"),
    ("TPOT p50", 9, "tpot_p50_ms"),
    ("E2EL p50", 9, "e2el_p50_ms"),
)
_WIDTHS = {"deployment": 17, "workload": 13, "load": 12, "rep": 3}


def text_table(frame: pd.DataFrame) -> str:
    """Return the main figures for a terminal, at most 100 columns wide; latencies in milliseconds.

    Every figure of a SUSPECT row ends in ``?``. An INVALID row shows its reason codes in place of figures.
    """
    names = "  ".join(f"{name:<{width}}" for name, width in _WIDTHS.items())
    lines = [names + "  " + "".join(f"{title:>{width - 1}} " for title, width, _ in _TERMINAL)]
    lines += [_text_row(row) for row in rows(frame)]
    if (frame["verdict"] == "SUSPECT").any():
        lines.append("? = SUSPECT: accepted, but a check objected; the report says which and why.")
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _text_row(row: dict[str, Any]) -> str:
    concurrency, rate = row["concurrency"], row["request_rate_per_s"]
    load = [f"c={concurrency}"] if concurrency is not None else []
    load += [f"{rate:g}/s"] if rate is not None else []
    cells = {
        "deployment": row["deployment"],
        "workload": row["workload"],
        "load": " ".join(load) or "all",
        "rep": str(row["repetition"]),
    }
    head = "  ".join(f"{_fit(cells[name], width):<{width}}" for name, width in _WIDTHS.items())
    if row["verdict"] == "INVALID":
        words_of = " ".join(filter(None, (row["failure"], row["reasons"]))).split()
        why = " ".join(dict.fromkeys(words_of)) or "no reason recorded"
        return f"{head}  {_fit(f'INVALID: {why}', sum(width for _, width, _ in _TERMINAL))}"
    mark = "?" if row["verdict"] == "SUSPECT" else " "
    figures = (f"{_terminal_number(row[column]):>{width - 1}}{mark}" for _, width, column in _TERMINAL)
    return f"{head}  {''.join(figures)}"


def _terminal_number(value: float | None) -> str:
    return formatting.number(value).replace("\N{NARROW NO-BREAK SPACE}", ",").replace(formatting.NOTHING, "-")


def _fit(text: str, width: int) -> str:
    text = formatting.printable(text)
    return text if len(text) <= width else text[: width - 1] + "\N{HORIZONTAL ELLIPSIS}"
