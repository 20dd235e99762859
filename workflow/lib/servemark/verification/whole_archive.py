"""Verify a whole archive: compare everything that it states, and list the problems."""

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from servemark import __version__
from servemark.archive import signature
from servemark.archive.crate import FORMAT
from servemark.archive.seal import MANIFEST
from servemark.errors import ServemarkError
from servemark.measurement import statistics, steady, verdict
from servemark.measurement.ledger import file_sha256
from servemark.measurement.raw import RawError, RawResult, read_raw
from servemark.measurement.thresholds import Verdict, stored
from servemark.measurement.verdict import ServerFacts
from servemark.records import Failure, Measurement, PlannedPoint
from servemark.report import formatting, gather, table
from servemark.report.columns import COLUMNS
from servemark.report.gather import RunRecords
from servemark.verification import accuracy, attempts, datasets, experiment, identity, sealed, searches, table_and_report
from servemark.verification.attempts import Span
from servemark.verification.facts import Finding, NotChecked
from servemark.verification.sealed import NOT_CHECKED, SealedBy
from servemark.verification.table_and_report import Difference, compare_rows, lines
from servemark.verification.telemetry import compare_telemetry
from servemark.verification.unpack import require_file, unpacked

_RECORD = "record"
STATES_THRESHOLDS = 3
"""The first archive format whose measurements state the thresholds in force."""
_NAMED = 3
_Codes = tuple[str, frozenset[tuple[str, str]]]
_COUNTED = {
    *table.FIGURES,
    *(f"{metric}_count" for metric in formatting.METRICS),
    *("duration_s", "total_input_tokens", "total_output_tokens", "requests_completed", "requests_failed"),
}


@dataclass(frozen=True)
class Verification:
    """The result of a check.

    Attributes:
        identity: sha256 of the archive's manifest.
        wrong: the problems found, one sentence each.
        not_checked: what an older archive lacks or states in another form, and what ran in another run or on another machine.
        thresholds: the thresholds of the verdicts that are not the defaults.
        signer: who signed the archive; empty if no key was given, or the signature does not hold.
    """

    run: str
    identity: str
    sealed_by: SealedBy
    files: int
    measurements: int
    figures: int
    wrong: tuple[str, ...]
    not_checked: tuple[str, ...]
    thresholds: tuple[str, ...]
    signer: str = ""

    def summary(self) -> str:
        """Return what was checked in two lines, then one line each for thresholds other than the defaults, and for what was not checked."""
        text = (
            f"  files    {self.files} compared with {MANIFEST}; its sha256 is the archive's identity: {self.identity}\n"
            f"  results  {self.figures} values of {formatting.plural(self.measurements, 'measurement').replace(chr(0xA0), ' ')} of run "
            f"{formatting.printable(self.run)}, recomputed from per-request results"
        )
        if self.signer:
            text += f"\n  signed   by {self.signer}"
        if self.thresholds:
            text += f"\n  verdicts by thresholds that are not the defaults: {', '.join(self.thresholds)}"
        if self.sealed_by.older:
            text += (
                f"\n  sealed   by servemark {formatting.printable(self.sealed_by.servemark)} in archive format {self.sealed_by.format}; "
                f"this is servemark {__version__}, format {FORMAT}"
            )
        if self.not_checked:
            text += f"\n  not checked: {', '.join(self.not_checked)}"
        return text


def verify(path: Path, keys: Path | None = None) -> Verification:
    """Check an archive's files against its manifest, its results against its per-request results, and its facts against one another.

    Args:
        keys: a public key or a file of allowed signers; the archive must have a signature of one of them.

    Raises:
        NoSuchFile: ``path`` is not a regular file.
        CannotSign: ``keys`` or ssh-keygen cannot be used.
        Unsafe: the file is not an archive, is damaged, or is unsafe to unpack. Nothing was checked.
    """
    require_file(path)
    signed = signature.check(path, keys) if keys else signature.Signature()
    with unpacked(path) as archive:
        sealed_by, wrong = sealed.check_crate(archive)
        wrong = [*filter(None, [signed.wrong]), *sealed.check_digest(path), *sealed.check_manifest(archive), *wrong]
        found = gather.read(archive.folder)
        wrong += [error.what.replace(f"{archive.folder}/", "") for error in found.wrong]
        rows: list[dict[str, Any]] = []
        results: list[Difference | str] = []
        unheld: list[str] = []
        spans: dict[tuple[str, str], Span] = {}
        try:
            for result in _compared(found, sealed_by, rows, spans):
                results.append(result)
        except ServemarkError as error:
            results.append(error.what)
        # Valid records may still hold values from which no table or report can be made.
        except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError, RecursionError) as error:
            results.append(f"Some results cannot be recomputed: {type(error).__name__}: {str(error)[:200]}")
        wrong += [item for item in results if isinstance(item, str)]
        for finding in contradictions(found, sealed_by, spans):
            wrong += [finding] if isinstance(finding, str) else []
            unheld += [finding.text] if isinstance(finding, NotChecked) else []
        wrong += [f"{name}: planned, but the archive contains no record of it." for name in found.missing]
        # An older archive may state less than this version does, but nothing else.
        differ = [item for item in results if isinstance(item, Difference)]
        older = _missing([item for item in differ if item.missing]) if sealed_by.older else []
        wrong += lines([item for item in differ if not (item.missing and sealed_by.older)])
        return Verification(
            run=found.run,
            identity=archive.digests.get(MANIFEST, "(no manifest)"),
            sealed_by=sealed_by,
            files=len(archive.digests),
            measurements=len(rows),
            figures=sum(value is not None for row in rows for name, value in row.items() if name in _COUNTED - _newer(sealed_by.format)),
            wrong=printable(*wrong),
            not_checked=printable(*NOT_CHECKED.get(sealed_by.format, ()), *older, *unheld),
            signer=formatting.printable(signed.signer),
            thresholds=printable(*experiment.loosened(found.config)),
        )


def refused(path: Path, wrong: Sequence[str]) -> ServemarkError:
    """Return the error for an archive in which problems were found."""
    return ServemarkError(
        f"{path.name}: {len(wrong)} problem(s) found:\n" + "\n".join(f"  {text}" for text in wrong),
        look=f"{path}, unpacked with tar --zstd -xf into an empty folder",
        do="Do not use the results listed above. Ask the sender for a new copy and for the sha256 of its manifest.",
        reason="archive_wrong",
    )


def _missing(differ: Iterable[Difference]) -> list[str]:
    """Return for each file or record the values that it lacks: all names, or the first ones and how many more."""
    names: dict[str, dict[str, None]] = {}
    for item in differ:
        if item.where == _RECORD and item.recomputed is None:
            continue
        names.setdefault(item.where, {})[item.path[-1]] = None
    found = []
    for where, of in names.items():
        some, more = list(of)[:_NAMED], len(of) - _NAMED
        rest = f" and {formatting.plural(more, 'more value')}" if more > 0 else ""
        found.append(f"{where} (this older archive does not state {', '.join(some)}{rest})")
    return found


def printable(*texts: str) -> tuple[str, ...]:
    """Return each text once, as one line without terminal control characters."""
    return tuple(dict.fromkeys(formatting.printable(" ".join(text.split())) for text in texts))


def contradictions(found: RunRecords, sealed_by: SealedBy, spans: Mapping[tuple[str, str], Span]) -> Iterator[Finding]:
    """Yield every fact that two places of the archive state in different ways."""
    yield from identity.check(found, older=sealed_by.older)
    yield from datasets.check(found)
    yield from experiment.check(found, older=sealed_by.older)
    yield from attempts.check(found, spans, older=sealed_by.older)
    yield from searches.check(found)
    yield from accuracy.check(found)
    # A lower format would switch off the checks of later ones.
    if sealed_by.format < STATES_THRESHOLDS and any(item.thresholds for item in found.measurements):
        what = f"records state thresholds (format {STATES_THRESHOLDS} and later)"
        yield f"ro-crate-metadata.json states format {sealed_by.format}, but {what}."


def _compared(
    found: RunRecords, sealed_by: SealedBy, rows: list[dict[str, Any]], spans: dict[tuple[str, str], Span]
) -> Iterator[Difference | str]:
    """Yield the problems of records, table and report; fill ``rows`` with the recomputed table, and ``spans``."""
    recomputed: list[Measurement] = []
    yield from _recomputed(found, sealed_by.format, recomputed, spans)
    accounts = list(found.accounts.values())
    # The targets in config.json decide no record, so both tables have the same attainment.
    attainments = replace(found, measurements=recomputed).attainments
    # Each record has the verdict of its own point; table and report also compare the repetitions.
    recorded, again = (table.rows(table.tidy(items, accounts, attainments)) for items in (found.measurements, recomputed))
    yield from compare_rows(_RECORD, _recorded(recorded, sealed_by.format), again)
    recomputed = found.judged(recomputed)
    expected = table.tidy(recomputed, accounts, attainments)
    rows += table.rows(expected)
    yield from table_and_report.compare_tables(found.folder, expected)
    if sealed_by.format >= 2:
        yield from table_and_report.compare_page(found, recomputed)


def _recorded(rows: list[dict[str, Any]], archive_format: int) -> list[dict[str, Any]]:
    """Return the rows of records without the empty cells of columns that records of this archive format do not have."""
    newer = _newer(archive_format)
    return [{name: value for name, value in row.items() if value is not None or name not in newer} for row in rows]


def _newer(archive_format: int) -> set[str]:
    return {column.name for column in COLUMNS if column.since > archive_format}


def _recomputed(
    found: RunRecords, archive_format: int, into: list[Measurement], spans: dict[tuple[str, str], Span]
) -> Iterator[Difference | str]:
    """Judge every measurement again from its per-request results; yield each verdict that differs from the record's.

    Checks that are newer than the archive's format are left out.

    Where a verdict differs, the measurement keeps the recorded one, so that its results can still be compared.

    Raises:
        ServemarkError: the thresholds in config.json cannot be read.
    """
    try:
        thresholds = stored(found.config.get("verdict", {}))
    except (ValueError, AttributeError) as error:
        raise ServemarkError(f"The thresholds (verdict) in config.json cannot be read: {error}") from None
    for record, (point, raw) in zip(found.measurements, found.points, strict=True):
        results = _raw(raw) if record.raw is not None else None
        if isinstance(results, RawResult) and results.requests:
            requests = results.requests
            spans[record.deployment, record.load.name] = (
                min(one.start for one in requests),
                max(one.start + one.latency for one in requests),
            )
        measurement, codes, words = _judged(record, point, raw, results, thresholds, archive_format)
        if codes != _codes(record):
            yield Difference((f"{record.deployment} {record.load.name}", "verdict"), _RECORD, _words(record), words)
        yield from compare_telemetry(found, record, measurement.duration_s)
        into.append(measurement)


def _judged(
    record: Measurement, point: PlannedPoint, path: Path, raw: RawResult | RawError | None, thresholds: Verdict, archive_format: int
) -> tuple[Measurement, _Codes, str]:
    """Return the recomputed measurement, and the recomputed verdict as codes and in words; ``raw``: None for a point without results."""
    # Facts that per-request results do not contain stay as recorded.
    base = record.model_copy(update={"load": point.load, "key": point.key, "raw": None, "raw_sha256": None})
    if raw is None:
        # An earlier stage failed, so the point was not measured.
        failure = record.failure or Failure(stage="measure", reason="no_reason_recorded", detail="")
        codes = _codes(record) if record.verdict == "INVALID" else ("INVALID", frozenset())
        return verdict.not_measured(base, failure), codes, "INVALID: no per-request results"
    judgement = verdict.judge(raw, point.load, thresholds, ServerFacts.of(record), archive_format)
    base = base.model_copy(update={"raw": path.name, "raw_sha256": file_sha256(path) if path.is_file() else None})
    kept = replace(judgement, verdict=record.verdict, reasons=record.reasons)
    if archive_format < STATES_THRESHOLDS:
        kept = replace(kept, thresholds=record.thresholds)
    if record.verdict != "INVALID" and kept.figures is None and isinstance(raw, RawResult):
        # Recompute the results although the new verdict is INVALID. Some times allow no results.
        with contextlib.suppress(ValueError):
            kept = replace(kept, figures=statistics.recount(raw.duration_s, raw.good), course=steady.course(raw, point.load))
    return verdict.judged(base, kept), _codes(judgement), _words(judgement, details=True)


def _raw(path: Path) -> RawResult | RawError:
    try:
        return read_raw(path)
    except RawError as error:
        # servemark writes an empty object for a client that wrote nothing.
        if error.reason == "raw_incomplete" and path.read_text().strip() == "{}":
            return RawError(error.what, reason="raw_missing")
        return error


def _codes(judged: Measurement | verdict.Judgement) -> _Codes:
    """Return what must agree. Details do not: their wording may change between versions."""
    return judged.verdict, frozenset((reason.code, reason.severity) for reason in judged.reasons)


def _words(judged: Measurement | verdict.Judgement, details: bool = False) -> str:
    why = "; ".join(f"{reason.code}: {reason.detail}" if details else reason.code for reason in judged.reasons)
    return f"{judged.verdict} ({why})" if why else judged.verdict
