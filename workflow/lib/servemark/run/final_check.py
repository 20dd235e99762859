"""The last stage of a run: pass, or move INVALID measurements aside and fail, so that the next run measures only these points again.

A point that is INVALID twice for the same reasons with the same ledger key becomes a permanent gap. The report names it, and no later run
measures it. So does a point that ``accept_invalid`` matches. A reason outside the load point, such as the allocation's time limit, never
makes a permanent gap.
"""

import fnmatch
import itertools
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from servemark.errors import ServemarkError
from servemark.measurement.ledger import Ledger
from servemark.measurement.reasons import DEFAULT_REMEDY, OUTSIDE, remedy
from servemark.progress import Progress
from servemark.records import Check, Measurement, Search, write_atomically
from servemark.report import gather, table, terminal
from servemark.run import accuracy_gaps

QUOTED_LINES = 3


@dataclass(frozen=True)
class Decision:
    """What happens to one record, and why."""

    path: Path
    record: Measurement
    action: Literal["keep", "move", "hole"]
    why: str = ""


def check(run_folder: Path, records: Iterable[Path], ledger: Ledger, accept_invalid: bool | Sequence[str], progress: Progress) -> Check:
    """Move INVALID measurements aside and fail, or pass with a list of permanent gaps; write summary.txt either way.

    A record and its raw file move to ``rejected/<deployment>/<point>.<n>.json`` and ``.raw``; n counts a point's rejections from 1.

    Args:
        accept_invalid: True, or glob patterns on ``deployment/point``: INVALID points that become permanent gaps at once.

    Raises:
        ServemarkError: servemark has to measure at least one point, or to run an accuracy check, again.
    """
    run = gather.read(run_folder)
    found = {path: Measurement.read(path) for path in records}
    collected = run.judged(list(found.values()))
    checks = accuracy_gaps.failed(run_folder, itertools.chain(*run.accuracy.values()), accept_invalid)
    rejected = run_folder / "rejected"
    before = _read_rejected(rejected, {record.deployment for record in found.values()})
    decisions = decide(found, before, accept_invalid, _missed(run.searches))
    moved, holes = ([decision for decision in decisions if decision.action == action] for action in ("move", "hole"))
    for decision in moved:
        reject(decision.path, decision.record, rejected)
        ledger.forget(decision.record.key, decision.record.raw_sha256)
    again = [one for one in checks if one.kept is None]
    for one in again:
        accuracy_gaps.move(run_folder, one)
    details = _details(moved, holes, rejected)
    lines = [terminal.results(replace(run, measurements=collected)), "", *([details, ""] if details else [])]
    lines += [*accuracy_gaps.details(checks), *table.links(run_folder)]
    write_atomically(run_folder / "summary.txt", "\n".join(lines) + "\n")
    if moved:
        # The run prints the summary at its end, so the details do not stand here too.
        raise ServemarkError(
            f"{len(moved)} of {len(found)} measurements are INVALID.",
            look=f"{run_folder / 'summary.txt'}, {run_folder / 'report.html'}",
            do="Fix the cause and rerun the same command: only these points are measured again.",
            reason="invalid_measurements",
        )
    if again:
        raise ServemarkError(
            f"{len(again)} accuracy check(s) have no result: {', '.join(one.name for one in again)}.",
            look=f"{run_folder / 'summary.txt'}, {run_folder / 'report.html'}",
            do="Fix the cause and rerun the same command: only these checks run again.",
            reason="accuracy_failed",
        )
    verdicts = [record.verdict for record in collected]
    valid, suspect = verdicts.count("VALID"), verdicts.count("SUSPECT")
    gaps = (*map(_hole, holes), *(one.hole for one in checks))
    progress.say(f"{valid} VALID, {suspect} SUSPECT, {len(gaps)} permanent gaps")
    return Check(run=run_folder.name, valid=valid, suspect=suspect, holes=gaps)


def decide(
    records: Mapping[Path, Measurement],
    rejected: Iterable[Measurement],
    accept_invalid: bool | Sequence[str],
    missed: Collection[str] = (),
) -> tuple[Decision, ...]:
    """Return what happens to each record, sorted by deployment and point.

    Args:
        rejected: records of earlier rejections.
        missed: DEPLOYMENT/POINT of trials whose load was too high for the server. The search counts them, so none is measured again.
    """
    patterns = accept_invalid if not isinstance(accept_invalid, bool) else ["*"] if accept_invalid else []
    seen = {(_name(record), record.key, reason_codes(record)) for record in rejected if not _skipped(record)}
    decisions = []
    for path, record in sorted(records.items(), key=lambda item: (item[1].deployment, item[1].load.name)):
        name, codes = _name(record), reason_codes(record)
        if record.verdict != "INVALID":
            decisions.append(Decision(path, record, "keep"))
        elif any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns):
            decisions.append(Decision(path, record, "hole", "accepted by accept_invalid"))
        elif name in missed:
            decisions.append(Decision(path, record, "hole", "the search counts it as a load that misses the targets"))
        elif (name, record.key, codes) in seen and not codes & OUTSIDE and not _skipped(record):
            decisions.append(Decision(path, record, "hole", "INVALID again for the same reason"))
        else:
            decisions.append(Decision(path, record, "move"))
    return tuple(decisions)


def _missed(searches: Mapping[str, Sequence[Search]]) -> set[str]:
    """Return DEPLOYMENT/POINT of each INVALID trial that its search counts as a miss."""
    trials = ((name, trial) for name, found in searches.items() for search in found for trial in search.trials)
    return {f"{name}/{trial.point.load.name}" for name, trial in trials if trial.verdict == "INVALID" and trial.decision == "misses"}


def _skipped(record: Measurement) -> bool:
    """Return whether the point was not measured because the server ended in an earlier point."""
    return record.failure is not None and record.failure.stage == "measure" and not record.client_argv


def reason_codes(record: Measurement) -> frozenset[str]:
    """Return the codes that make a record INVALID; for a failed deployment, its failure's code alone."""
    if record.failure:
        return frozenset({record.failure.reason})
    return frozenset(reason.code for reason in record.reasons if reason.severity == "INVALID")


def _read_rejected(rejected: Path, deployments: Iterable[str]) -> Iterator[Measurement]:
    """Yield the records of earlier rejections; skip records that cannot be read."""
    for path in sorted(path for name in deployments for path in (rejected / _plain(name)).glob("*.json")):
        if record := Measurement.read_or_none(path):
            yield record


def reject(path: Path, record: Measurement, rejected: Path) -> Path:
    """Move one record and its raw file aside; return the record's new path.

    The record moves last, in one rename: if the process dies earlier, the next run's final check completes the move.
    """
    folder = rejected / _plain(record.deployment)
    folder.mkdir(parents=True, exist_ok=True)
    number = 1
    while any((folder / f"{_plain(record.load.name)}.{number}{end}").exists() for end in (".json", ".raw")):
        number += 1
    target = folder / f"{record.load.name}.{number}.json"
    raw = path.parent / _plain(record.raw) if record.raw else None
    if raw and raw.exists():
        # Not .json: each .json file in this folder is a record.
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
    """Return (reason, detail with quoted log lines, log, remedy) of each cause of an INVALID record."""
    if record.failure:
        failure = record.failure
        quote = "".join(f"\n{line.strip()}" for line in failure.quote[:QUOTED_LINES])
        return [(failure.reason, failure.detail + quote, failure.log or "-", failure.remedy or remedy(failure.reason))]
    log = f"{record.attempt}/server.log" if record.attempt else "-"
    if record.attempt and not {"server_died", "server_hung", "server_changed"} & reason_codes(record):
        # RUN/deployments/NAME/attempts/NUMBER
        run_folder = record.attempt.partition("/deployments/")[0]
        log = f"{run_folder}/logs/measure/{record.deployment}/{record.load.name}.log"
        of_search = f"{run_folder}/logs/search/{record.deployment}/{record.load.workload}.log"
        log = of_search if Path(of_search).exists() and not Path(log).exists() else log
    return [(reason.code, reason.detail, log, remedy(reason.code)) for reason in record.reasons if reason.severity == "INVALID"] or [
        ("unknown", "The record contains no reason.", log, DEFAULT_REMEDY)
    ]


def _hole(decision: Decision) -> dict[str, str]:
    causes = _causes(decision.record)
    return {
        "deployment": decision.record.deployment,
        "point": decision.record.load.name,
        "reason": ", ".join(reason for reason, *_ in causes),
        "detail": f"{' '.join(detail for _, detail, *_ in causes)} ({decision.why})".replace("\n", " | "),
    }


def _details(moved: Sequence[Decision], holes: Sequence[Decision], rejected: Path) -> str:
    parts = []
    if moved:
        parts += [
            f"INVALID ({len(moved)}): excluded from all results and moved to {rejected}. The next run measures only these points again. A "
            "point that is INVALID again for the same reason then becomes a permanent gap.",
            *_rows(moved),
        ]
    if holes:
        parts += [
            f"Permanent gaps ({len(holes)}): points without results. The report names them, and the next run does not measure them.",
            *_rows(holes),
            "To measure such a point again after fixing its cause, run "
            f"`servemark remeasure {rejected.parent.name} DEPLOYMENT/POINT`, then rerun the same command.",
        ]
    return "\n".join(parts)


def _rows(decisions: Sequence[Decision]) -> Iterator[str]:
    """Yield a line with point and reason for each cause, then detail, log and remedy, once for points of a deployment that share them."""
    width = max(len(_name(decision.record)) for decision in decisions)
    for (_, causes), shared in itertools.groupby(decisions, key=lambda decision: (decision.record.deployment, _causes(decision.record))):
        group = list(shared)
        for reason, detail, log, do in causes:
            for decision in group:
                yield f"  {_name(decision.record):<{width}}  {reason}{f' ({decision.why})' if decision.why else ''}"
            detail = detail.replace("\n", f"\n  {'':<{width}}      | ")
            yield from (f"  {'':<{width}}    {label}: {text}" for label, text in (("detail", detail), ("log", log), ("remedy", do)))
