"""Every measurement made anew from its per-request results, by the code that judged it when it was measured."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path

from pydantic import ValidationError

from servemark.errors import ServemarkError
from servemark.measurement import verdict
from servemark.measurement.ledger import file_sha256
from servemark.measurement.raw import RawError, RawResult, read_raw
from servemark.measurement.statistics import recount as figures_of
from servemark.measurement.thresholds import Verdict
from servemark.measurement.verdict import ServerFacts
from servemark.records import Failure, Measurement, PlannedPoint
from servemark.report.gather import RunRecords
from servemark.verification.stated import Difference

RECORD = "record"


def recount(found: RunRecords) -> tuple[list[Measurement], list[Difference]]:
    """Return the measurements as their per-request results give them, and every verdict that differs from the stated one.

    Where a verdict differs, the measurement keeps the stated one, so that its figures can be compared all the same.

    Raises:
        ServemarkError: config.json states no thresholds that can be read.
    """
    try:
        thresholds = Verdict.model_validate(found.config.get("verdict", {}))
    except ValidationError as error:
        raise ServemarkError(f"config.json: its thresholds (verdict) cannot be read: {error}") from None
    measurements, differences = [], []
    for record, (point, raw) in zip(found.measurements, found.points, strict=True):
        measurement, differs = _recount(record, point, raw, thresholds)
        measurements.append(measurement)
        differences += differs
    return measurements, differences


def _recount(record: Measurement, point: PlannedPoint, path: Path, thresholds: Verdict) -> tuple[Measurement, list[Difference]]:
    def differ(recomputed: str) -> list[Difference]:
        return [Difference((f"{record.deployment} {record.load.name}", "verdict"), RECORD, _words(record), recomputed)]

    # What per-request results do not tell stays as the record states it.
    base = record.model_copy(update={"load": point.load, "key": point.key, "raw": None, "raw_sha256": None})
    if record.raw is None:
        # Never measured: an earlier stage failed.
        failure = record.failure or Failure(stage="measure", reason="no_reason_recorded", detail="")
        wrong = differ("INVALID: no per-request results") if record.verdict != "INVALID" else []
        return verdict.not_measured(base, failure), wrong
    raw = _raw(path)
    judgement = verdict.judge(raw, point.load, thresholds, ServerFacts.of(record))
    wrong = differ(_words(judgement, details=True)) if _codes(judgement) != _codes(record) else []
    base = base.model_copy(update={"raw": path.name, "raw_sha256": file_sha256(path) if path.is_file() else None})
    kept = replace(judgement, verdict=record.verdict, reasons=record.reasons)
    if record.verdict != "INVALID" and kept.figures is None and isinstance(raw, RawResult):
        # The figures although the verdict is INVALID, unless the times allow none.
        with contextlib.suppress(ValueError):
            kept = replace(kept, figures=figures_of(raw.duration_s, raw.good))
    return verdict.judged(base, kept), wrong


def _raw(path: Path) -> RawResult | RawError:
    try:
        return read_raw(path)
    except RawError as error:
        # Where the client wrote nothing, an empty object was put in its place.
        if error.reason == "raw_incomplete" and path.read_text().strip() == "{}":
            return RawError(error.what, reason="raw_missing")
        return error


def _codes(judged: Measurement | verdict.Judgement) -> tuple[str, set[tuple[str, str]]]:
    # Another version may word the sentences otherwise.
    return judged.verdict, {(reason.code, reason.severity) for reason in judged.reasons}


def _words(judged: Measurement | verdict.Judgement, details: bool = False) -> str:
    why = "; ".join(f"{reason.code}: {reason.detail}" if details else reason.code for reason in judged.reasons)
    return f"{judged.verdict} ({why})" if why else judged.verdict
