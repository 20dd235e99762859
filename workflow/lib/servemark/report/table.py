"""Make the tidy table: one row per measurement, units in the column names, no results in INVALID rows."""

import io
import math
import os
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd

from servemark.measurement import thresholds
from servemark.measurement.intervals import Interval
from servemark.measurement.slo import Attainment
from servemark.records import Accounting, Measurement, write_atomically
from servemark.report import formatting
from servemark.report.columns import COLUMNS, LOAD, STEADY, TERMINAL
from servemark.report.measured import Row, ordered, topology

SCHEMA = {column.name: column.dtype for column in COLUMNS}
FIGURES = tuple(column.name for column in COLUMNS if column.figure and column.label)
_WHY = (f"{STEADY}missing", f"{STEADY}too_few")


Attainments = Mapping[tuple[str, str], Attainment]
"""How measurements meet their latency targets, by deployment and load point (``measurement.slo``)."""


def tidy(
    measurements: Sequence[Measurement], accounts: Iterable[Accounting] = (), attainments: Attainments = MappingProxyType({})
) -> pd.DataFrame:
    """Return one row per measurement with all ``COLUMNS``, sorted by deployment, workload, load and repetition.

    ``accounts`` provide the Slurm job of each attempt.
    """
    jobs = {
        attempt: (job.job_id, attempt_id)
        for account in accounts
        for job in account.jobs
        for attempt, attempt_id in zip(job.attempts, job.attempt_ids or (None,) * len(job.attempts), strict=False)
    }
    found = (
        Row(item, topology(item), _job(item, jobs), attainments.get((item.deployment, item.load.name))) for item in ordered(measurements)
    )
    values = [[column.value(row) for column in COLUMNS] for row in found]
    return pd.DataFrame(values, columns=list(SCHEMA)).astype(SCHEMA)


def _job(item: Measurement, jobs: Mapping[str, tuple[str, str | None]]) -> str | None:
    """Return the job of a measurement's attempt; None without one. ``jobs``: by folder of an attempt, its job and its id."""
    job, attempt_id = jobs.get(item.attempt or "", (None, None))
    return job if item.measured_in(attempt_id) else None


def aggregate(frame: pd.DataFrame, figures: Sequence[str] = FIGURES) -> pd.DataFrame:
    """Return one row per deployment, workload and load: ``COLUMN_median``, ``_min`` and ``_max`` over accepted repetitions.

    A result of the steady state is missing if one accepted repetition has none; ``steady_missing`` and ``steady_too_few`` state the reason
    of the first one. ``FIGURE_repetitions`` is the number of values behind them, ``_low`` and ``_high`` the ends of their interval
    (``measurement.intervals``), empty if there is none. ``repetitions_asked`` counts all repetitions, ``_accepted`` VALID and SUSPECT
    ones, ``_suspect`` SUSPECT ones. Rows are in the order of ``tidy``.

    Args:
        figures: the columns to aggregate. All of them take seconds for thousands of rows.
    """
    # A Python function per group would take seconds for thousands of groups.
    marked = frame.assign(accepted=frame["verdict"] != "INVALID", suspect=frame["verdict"] == "SUSPECT")
    groups = marked.groupby(list(LOAD), dropna=False, sort=False)
    counts = groups.agg(
        repetitions_asked=("verdict", "size"),
        repetitions_accepted=("accepted", "sum"),
        repetitions_suspect=("suspect", "sum"),
    ).astype("Int64")
    found = groups[list(figures)].agg(["median", "min", "max"])
    steady = [name for name in figures if name.startswith(STEADY)]
    missing = groups[steady].count().lt(counts["repetitions_accepted"], axis=0)
    for name in steady:
        found.loc[missing[name], name] = math.nan
    found.columns = [f"{figure}_{statistic}" for figure, statistic in found.columns]
    return counts.join(groups[list(_WHY)].first()).join([found, *_intervals(marked, missing, list(figures))]).reset_index()


def _intervals(frame: pd.DataFrame, missing: pd.DataFrame, names: list[str]) -> Iterator[pd.DataFrame]:
    """Yield the number of values of each result in a load point, and the ends of their intervals; nothing where it is ``missing``."""
    known = frame[names].astype("float64")
    logs = frame.assign(**np.log(known.where(known > 0)))
    values, positive = (of.groupby(list(LOAD), dropna=False, sort=False)[names] for of in (frame, logs))
    count = values.count()
    count = count.where(~missing.reindex(columns=names, fill_value=False), 0)
    # Without a logarithm for each value, there is no interval.
    usable = positive.count().where(positive.count() == count)
    found = Interval.of_logs(positive.mean(), positive.std(), usable)
    yield count.astype("Int64").add_suffix("_repetitions")
    for end in ("low", "high"):
        yield pd.DataFrame(getattr(found, end), index=count.index, columns=names).add_suffix(f"_{end}")


def rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows as dictionaries, with None for missing values."""
    names = [str(name) for name in frame.columns]
    # By column: pandas takes several times as long to do this for all columns at once.
    values = [
        [None if missing else value for value, missing in zip(column.tolist(), column.isna(), strict=True)] for _, column in frame.items()
    ]
    return [dict(zip(names, row, strict=True)) for row in zip(*values, strict=True)]


def write_csv(frame: pd.DataFrame, path: str | os.PathLike[str]) -> None:
    """Write ``frame`` as :func:`csv_text`."""
    write_atomically(path, csv_text(frame))


def csv_text(frame: pd.DataFrame) -> str:
    """Return ``frame`` as CSV. Floats have the shortest digits that read back as the same value.

    A spreadsheet would run text as a formula if it begins with ``=``, ``+``, ``-``, ``@``, tab or carriage return. Such text gets a leading
    apostrophe: https://owasp.org/www-community/attacks/CSV_Injection
    """
    safe = frame.copy()
    for column in safe.select_dtypes("string"):
        guarded = safe[column].str.replace(r"\A([=+\-@\t\r])", r"'\1", regex=True)
        # Before Python 3.13, the csv module does not quote a carriage return, and readers take it for the end of a row.
        safe[column] = guarded.str.replace("\r", "\n")
    return str(safe.to_csv(index=False, lineterminator="\n"))


def write_parquet(frame: pd.DataFrame, path: str | os.PathLike[str]) -> None:
    """Write ``frame`` as Parquet without an index."""
    buffer = io.BytesIO()
    frame.to_parquet(buffer, index=False)
    write_atomically(path, buffer.getvalue())


WIDTH, NARROWEST = 100, 8
_FEW = "few"
_STEADY_OUTPUT = f"{STEADY}output_tokens_per_s"
_NAMES = ("deployment", "workload", "load", "rep")


def text_table(frame: pd.DataFrame, rounded: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return the main results for a terminal, at most 100 columns wide. Latencies are in milliseconds.

    The results are those of the steady state; a load without one shows its throughput of the whole run, in words. If no load has a steady
    state, all results are those of the whole run, and a note says so. Every result of a SUSPECT row ends in ``?``. An INVALID row shows its
    reason codes instead of results.

    Args:
        rounded: deployments whose results end in ``*``, from ``comparable.rounded``.
    """
    found = rows(frame)
    steady = any(row[_STEADY_OUTPUT] is not None for row in found)
    shown = [column.name if steady else column.name.removeprefix(STEADY) for column in TERMINAL]
    all_names = [[formatting.printable(name) for name in (*names(row), str(row["repetition"]))] for row in found]
    figures = [[_FEW if steady and row[name] is None else terminal_number(row[name]) for name in shown] for row in found]
    space = 2 if rounded else 1
    upper, lower = zip(*(column.terminal.rsplit(" ", 1) for column in TERMINAL), strict=True)
    right = [max(map(len, column)) for column in zip(upper, lower, *figures, strict=True)]
    left = [max(map(len, column)) for column in zip(_NAMES, *all_names, strict=True)]
    # The longest names give way.
    while sum(left) + 2 * (len(left) - 1) + sum(right) + (1 + space) * len(right) > WIDTH and max(left) > NARROWEST:
        left[left.index(max(left))] -= 1

    def head(cells: Iterable[str]) -> str:
        return "  ".join(f"{fit(cell, width):<{width}}" for cell, width in zip(cells, left, strict=True))

    def body(cells: Iterable[str], marks: str = "") -> str:
        return "".join(f" {cell:>{width}}{marks:<{space}}" for cell, width in zip(cells, right, strict=True))

    lines = [f"{'latencies in ms':<{len(head(_NAMES))}}{body(upper)}", head(_NAMES) + body(lower)]
    for row, name, cells in zip(found, all_names, figures, strict=True):
        if row["verdict"] == "INVALID":
            codes = " ".join(filter(None, (row["failure"], row["reasons"]))).split()
            why = " ".join(dict.fromkeys(codes)) or "no reason recorded"
            lines.append(f"{head(name)}  {fit(f'INVALID: {why}', len(body(lower)) - 2)}")
        elif steady and row[_STEADY_OUTPUT] is None:
            whole = f"no steady state; whole run {terminal_number(row['output_tokens_per_s'])}{mark(row, rounded)} tok/s"
            lines.append(f"{head(name)}  {fit(whole, len(body(lower)) - 2)}")
        else:
            lines.append(head(name) + body(cells, mark(row, rounded)))
    lines += _notes(frame, [row for row in found if row["verdict"] != "INVALID"])
    for deployment, given in rounded.items():
        note = formatting.printable(f"* = {deployment} calculates in fewer bits than its model was trained for ({given}).")
        lines += textwrap.wrap(note, WIDTH, subsequent_indent="    ", break_on_hyphens=False)
    return "\n".join(line.rstrip() for line in lines) + "\n"


def mark(row: Mapping[str, Any], rounded: Mapping[str, str]) -> str:
    """Return the marks of a row's results: ``?`` if it is SUSPECT, ``*`` for a deployment in ``rounded``."""
    return ("?" if row["verdict"] == "SUSPECT" else "") + ("*" if row["deployment"] in rounded else "")


def _notes(frame: pd.DataFrame, accepted: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return which part of the loads these rows show, and what their words and marks mean, one sentence a line."""
    notes = _part(accepted)
    suspect = frame.loc[frame["verdict"] == "SUSPECT", "reasons"].dropna()
    if len(suspect):
        notes.append("? = SUSPECT: accepted, but at least one check failed. The report shows the details.")
        codes = Counter(code for text in suspect for code in dict.fromkeys(text.split()))
        counted = ", ".join(f"{code} {count}" for code, count in codes.most_common())
        why = f"SUSPECT by reason, some by several (docs/reference/reasons.md): {counted}"
        notes += textwrap.wrap(why, WIDTH, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False)
    texts = frame.loc[frame["verdict"] != "INVALID", "thresholds"].dropna()
    looser = dict.fromkeys(filter(None, (thresholds.looser(thresholds.parsed(text)) for text in texts)))
    return notes + [f"VALID and SUSPECT with thresholds looser than the defaults: {limits}" for limits in looser]


def _part(accepted: Sequence[Mapping[str, Any]]) -> list[str]:
    steady = [row for row in accepted if row[_STEADY_OUTPUT] is not None]
    if not steady:
        # A record made before archive format 3 has neither the steady state nor a reason.
        missing = "has" if any(row[_WHY[0]] for row in accepted) else "was recorded with"
        return [f"Results are of the whole run, start and end included: no load {missing} a steady state."] if accepted else []
    notes = ["Results are of the steady state (without start and end). The report also shows the whole run."]
    if any(row[column.name] is None for row in steady for column in TERMINAL):
        notes.append(f"{_FEW} = too few requests in the steady state for this number. The report shows how many it needs.")
    if len(steady) < len(accepted):
        notes.append("no steady state = too few requests per slot, or all sent at once. The report shows the reason.")
    return notes


def links(run_folder: Path) -> list[str]:
    """Return what to open next, one a line: ``file://`` links (absolute, percent-encoded) of report, archive and CSV, if they exist."""
    files = {"report": "report.html", "archive": f"archive/{run_folder.absolute().name}.tar.zst", "measurements": "measurements.csv"}
    found = {what: (run_folder / name).absolute() for what, name in files.items()}
    return [f"{what:<12}  {path.as_uri()}" for what, path in found.items() if path.exists()]


def names(row: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return deployment, workload and load of a row, the load in a few characters."""
    concurrency, rate = row["concurrency"], row["request_rate_per_s"]
    load = [f"c={concurrency}"] if concurrency is not None else []
    load += [f"{rate:g}/s"] if rate is not None else []
    return row["deployment"], row["workload"], " ".join(load) or "all"


def terminal_number(value: float | None) -> str:
    """Return a number in ASCII."""
    return formatting.number(value).replace("\N{NARROW NO-BREAK SPACE}", ",").replace(formatting.NOTHING, "-")


def fit(text: str, width: int) -> str:
    """Return the text in at most ``width`` characters, without control characters."""
    text = formatting.printable(text)
    return text if len(text) <= width else text[: width - 1] + "\N{HORIZONTAL ELLIPSIS}"
