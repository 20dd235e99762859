"""The gate: INVALID records are moved aside so that the next run measures exactly those points again.

A point that is INVALID twice for the same reasons with the same ledger key is not measured a third time: it becomes a
reported hole, and so does one that the configuration accepts. A reason that comes from outside, such as the end of an
allocation's time, never makes one. ``decide`` is pure; ``gate`` reads and moves files.
"""

from __future__ import annotations

import contextlib
import fnmatch
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from servemark.errors import ServemarkError
from servemark.measurement.reasons import DEFAULT_REMEDY, OUTSIDE, remedy
from servemark.records import Measurement

Action = Literal["keep", "move", "hole"]

QUOTED_LINES = 3


@dataclass(frozen=True)
class Decision:
    """What happens to one record, and why."""

    path: Path
    record: Measurement
    action: Action
    why: str = ""


@dataclass(frozen=True)
class GateResult:
    """The gate's answer: where each rejected record is now, by deployment/point; accepted gaps; a text for the user, empty when good."""

    valid: int
    suspect: int
    moved: Mapping[str, Path]
    holes: tuple[dict[str, str], ...]
    table: str

    @property
    def passed(self) -> bool:
        """Nothing was moved: the next run has nothing to measure again."""
        return not self.moved


def gate(records: Mapping[Path, Measurement], rejected_dir: Path, accept_invalid: bool | Sequence[str] = False) -> GateResult:
    """Judge all records of a run, by the path of each, and move the rejected ones, with their raw files, to ``rejected_dir``.

    There they are ``<deployment>/<point>.<n>.json``, n counting a point's rejections from 1. ``accept_invalid``: True, or glob patterns on
    ``deployment/point``: INVALID points that stay, as holes.
    """
    deployments = {record.deployment for record in records.values()}
    decisions = decide(records, read_rejected(rejected_dir, deployments), accept_invalid)
    moved = {_name(d.record): reject(d.path, d.record, rejected_dir) for d in decisions if d.action == "move"}
    verdicts = [record.verdict for record in records.values()]
    return GateResult(
        valid=verdicts.count("VALID"),
        suspect=verdicts.count("SUSPECT"),
        moved=moved,
        holes=tuple(_hole(d) for d in decisions if d.action == "hole"),
        table=_table(decisions, rejected_dir),
    )


def decide(
    records: Mapping[Path, Measurement], rejected: Iterable[Measurement], accept_invalid: bool | Sequence[str]
) -> tuple[Decision, ...]:
    """Return what happens to each record, sorted by deployment and point. ``rejected``: the records of earlier rejections."""
    patterns = accept_invalid if not isinstance(accept_invalid, bool) else ["*"] if accept_invalid else []
    seen = {(_name(record), record.key, reason_codes(record)) for record in rejected if not _of_another(record)}
    decisions = []
    for path, record in sorted(records.items(), key=lambda item: (item[1].deployment, item[1].load.name)):
        name, codes = _name(record), reason_codes(record)
        if record.verdict != "INVALID":
            decisions.append(Decision(path, record, "keep"))
        elif any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns):
            decisions.append(Decision(path, record, "hole", "accepted by accept_invalid"))
        elif (name, record.key, codes) in seen and not codes & OUTSIDE and not _of_another(record):
            decisions.append(Decision(path, record, "hole", "INVALID again for the same reason"))
        else:
            decisions.append(Decision(path, record, "move"))
    return tuple(decisions)


def _of_another(record: Measurement) -> bool:
    """Return whether the point was never measured because the server had ended in the measurement of one before it."""
    return record.failure is not None and record.failure.stage == "measure" and not record.client_argv


def reason_codes(record: Measurement) -> frozenset[str]:
    """Return why a record is INVALID; for a deployment that failed, its failure's reason alone."""
    if record.failure:
        return frozenset({record.failure.reason})
    return frozenset(reason.code for reason in record.reasons if reason.severity == "INVALID")


def read_rejected(rejected_dir: Path, deployments: Iterable[str]) -> tuple[Measurement, ...]:
    """Return the records of earlier rejections of these deployments; records that cannot be read do not count."""
    records = []
    for path in sorted(path for name in deployments for path in (rejected_dir / _plain(name)).glob("*.json")):
        with contextlib.suppress(ServemarkError):
            records.append(Measurement.read(path))
    return tuple(records)


def reject(path: Path, record: Measurement, rejected_dir: Path) -> Path:
    """Move one record and its raw file aside; returns the record's new path.

    The record moves last, in one rename: after a crash before it, the next gate does the move.
    """
    folder = rejected_dir / _plain(record.deployment)
    folder.mkdir(parents=True, exist_ok=True)
    number = 1
    while any((folder / f"{_plain(record.load.name)}.{number}{end}").exists() for end in (".json", ".raw")):
        number += 1
    target = folder / f"{record.load.name}.{number}.json"
    raw = path.parent / _plain(record.raw) if record.raw else None
    if raw and raw.exists():
        # Not .json: read_rejected takes every .json for a record.
        place = target.with_suffix(".raw")
        shutil.move(raw, place)
        record.model_copy(update={"raw": place.name}).write(path)
    shutil.move(path, target)
    return target


def _plain(name: str) -> str:
    if not name or name in (".", "..") or Path(name).name != name:
        raise ServemarkError(f"{name!r} in a measurement's record is not a plain name.", reason="record_broken")
    return name


def _name(record: Measurement) -> str:
    return f"{record.deployment}/{record.load.name}"


def _causes(record: Measurement) -> list[tuple[str, str, str, str]]:
    """Return (reason, detail with the log's own words, log, remedy) of each cause of an INVALID record."""
    if record.failure:
        failure = record.failure
        said = "".join(f"\n{line.strip()}" for line in failure.quote[:QUOTED_LINES])
        return [(failure.reason, failure.detail + said, failure.log or "-", failure.remedy or remedy(failure.reason))]
    log = f"{record.attempt}/server.log" if record.attempt else "-"
    if record.attempt and not {"server_died", "server_hung", "server_changed"} & reason_codes(record):
        # RUN/deployments/NAME/attempts/NUMBER
        run_folder = record.attempt.partition("/deployments/")[0]
        log = f"{run_folder}/logs/measure/{record.deployment}/{record.load.name}.log"
    return [(reason.code, reason.detail, log, remedy(reason.code)) for reason in record.reasons if reason.severity == "INVALID"] or [
        ("unknown", "The record gives no reason.", log, DEFAULT_REMEDY)
    ]


def _hole(decision: Decision) -> dict[str, str]:
    causes = _causes(decision.record)
    return {
        "deployment": decision.record.deployment,
        "point": decision.record.load.name,
        "reason": ", ".join(reason for reason, *_ in causes),
        "detail": f"{' '.join(detail for _, detail, *_ in causes)} ({decision.why})".replace("\n", " | "),
    }


def _table(decisions: Sequence[Decision], rejected_dir: Path) -> str:
    parts = []
    if moved := [decision for decision in decisions if decision.action == "move"]:
        parts += [
            f"{len(moved)} INVALID measurement(s), moved to {rejected_dir}. The next `snakemake` measures exactly "
            "these again; a second failure for the same reason is then reported as a hole instead:",
            *_rows(moved),
        ]
    if holes := [decision for decision in decisions if decision.action == "hole"]:
        parts += [
            f"{len(holes)} hole(s): points without figures, named in the report; the next run does not measure them:",
            *_rows(holes),
            f"To measure a hole again after fixing its cause, delete {rejected_dir.parent}/deployments/DEPLOYMENT/points/"
            f"POINT.json and {rejected_dir}/DEPLOYMENT/POINT.*",
        ]
    return "\n".join(parts)


def _rows(decisions: Sequence[Decision]) -> Iterator[str]:
    """Yield a line with point and reason for each cause, then detail, log and remedy."""
    width = max(len(_name(decision.record)) for decision in decisions)
    for decision in decisions:
        for reason, detail, log, do in _causes(decision.record):
            yield f"  {_name(decision.record):<{width}}  {reason}{f' ({decision.why})' if decision.why else ''}"
            detail = detail.replace("\n", f"\n  {'':<{width}}      | ")
            yield from (f"  {'':<{width}}    {label}: {text}" for label, text in (("detail", detail), ("log", log), ("remedy", do)))
