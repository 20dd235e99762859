"""The last stage of a run: pass, or set INVALID measurements aside and fail."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from servemark.errors import ServemarkError
from servemark.measurement import quarantine
from servemark.measurement.ledger import Ledger
from servemark.progress import Progress
from servemark.records import Check, Measurement, write_atomically
from servemark.report import table


def gate(run_folder: Path, records: Iterable[Path], ledger: Ledger, accept_invalid: bool | Sequence[str], progress: Progress) -> Check:
    """Set INVALID measurements aside and fail, or pass and name the holes; write summary.txt either way.

    Raises:
        ServemarkError: at least one measurement has to be made again.
    """
    found = {path: Measurement.read(path) for path in records}
    answer = quarantine.gate(found, run_folder / "rejected", accept_invalid)
    for path in answer.moved.values():
        rejected = Measurement.read(path)
        ledger.forget(rejected.key, rejected.raw_sha256)
    name = run_folder.name
    lines = [table.text_table(table.tidy(list(found.values()))), ""]
    if answer.table:
        lines += [answer.table, ""]
    lines += [
        f"report        {run_folder / 'report.html'}",
        f"measurements  {run_folder / 'measurements.csv'} and .parquet",
        f"archive       {run_folder / 'archive' / f'{name}.tar.zst'}",
    ]
    write_atomically(run_folder / "summary.txt", "\n".join(lines) + "\n")
    if not answer.passed:
        raise ServemarkError(
            f"{len(answer.moved)} of {len(found)} measurements are INVALID. They are excluded from all results and were moved to "
            f"{run_folder / 'rejected'}.\n{answer.table}",
            look=str(run_folder / "report.html"),
            do="Fix the cause and rerun the same command: only these points are measured again.",
            reason="invalid_measurements",
        )
    progress.say(f"{answer.valid} VALID, {answer.suspect} SUSPECT, {len(answer.holes)} accepted holes")
    return Check(run=name, valid=answer.valid, suspect=answer.suspect, holes=answer.holes)
