"""Every measurement made anew from its per-request results, by the code that judged it when it was measured."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from servemark.errors import ServemarkError
from servemark.measurement import statistics, verdict
from servemark.measurement.facts import ServerFacts
from servemark.measurement.ledger import file_sha256
from servemark.measurement.raw import RawError, RawResult, read_raw
from servemark.measurement.statistics import recount as figures_of
from servemark.measurement.thresholds import Verdict
from servemark.records import Failure, Measurement
from servemark.report.gather import PointFiles, RunRecords
from servemark.verification.differences import Difference

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
    for item in found.points:
        measurement, differs = _recount(item, thresholds)
        measurements.append(measurement)
        differences += differs
    return measurements, differences


def _recount(item: PointFiles, thresholds: Verdict) -> tuple[Measurement, list[Difference]]:
    record = item.record

    def differ(figure: str, stated: Any, recomputed: Any) -> Difference:
        return Difference((f"{record.deployment} {record.load.name}", figure), RECORD, stated, recomputed)

    # What per-request results do not tell stays as the record states it.
    base = record.model_copy(update={"load": item.point.load, "key": item.point.key, "raw": None, "raw_sha256": None})
    if record.raw is None:
        # Never measured: an earlier stage failed.
        failure = record.failure or Failure(stage="measure", reason="no_reason_recorded", detail="")
        expected = verdict.not_measured(base, failure)
        wrong = record.verdict != "INVALID"
        return expected, [differ("verdict", record.verdict, "INVALID: no per-request results")] if wrong else []
    raw = _raw(item)
    judgement = verdict.judge(raw, item.point.load, thresholds, ServerFacts.of(record))
    found = []
    if _codes(judgement) != _codes(record):
        found.append(differ("verdict", _words(record), _words(judgement, details=True)))
    sha256 = file_sha256(item.raw) if item.raw.is_file() else None
    base = base.model_copy(update={"raw": item.raw.name, "raw_sha256": sha256})
    kept = replace(judgement, verdict=record.verdict, reasons=record.reasons)
    if record.verdict != "INVALID" and kept.figures is None and isinstance(raw, RawResult):
        kept = replace(kept, figures=_figures(raw))
    return verdict.judged(base, kept), found


def _raw(item: PointFiles) -> RawResult | RawError:
    try:
        return read_raw(item.raw)
    except RawError as error:
        # Where the client wrote nothing, an empty object was put in its place.
        if error.reason == "raw_incomplete" and item.raw.read_text().strip() == "{}":
            return RawError(error.what, reason="raw_missing")
        return error


def _codes(judged: Measurement | verdict.Judgement) -> tuple[str, set[tuple[str, str]]]:
    # The sentences may be worded otherwise by another version.
    return judged.verdict, {(reason.code, reason.severity) for reason in judged.reasons}


def _words(judged: Measurement | verdict.Judgement, details: bool = False) -> str:
    why = "; ".join(f"{reason.code}: {reason.detail}" if details else reason.code for reason in judged.reasons)
    return f"{judged.verdict} ({why})" if why else judged.verdict


def _figures(raw: RawResult) -> statistics.Figures | None:
    """Return the figures although the verdict is INVALID; None where the times allow none."""
    try:
        return figures_of(raw.duration_s, raw.good)
    except ValueError:
        return None
