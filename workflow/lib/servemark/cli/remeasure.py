"""``servemark remeasure``: set the results of load points aside, so that the next run measures these points again."""

import fnmatch
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from servemark.cli import runs
from servemark.config.resolved import read_resolved
from servemark.config.restarts import starts
from servemark.errors import ServemarkError
from servemark.measurement.ledger import Ledger
from servemark.records import Measurement, record_files
from servemark.run import run_lock

REPLACED = "replaced"
"""Folder of the ledger for results that the command set aside. No archive contains it."""
_NAMED = 20


class NoSuchPoint(ServemarkError):
    """A pattern fits no load point of the run that has a result."""

    exit_code = 2
    default_reason = "no_such_point"


def remeasure(run_folder: Path, patterns: Sequence[str]) -> dict[str, Path]:
    """Set aside the results of each load point that fits a pattern: its record, ledger entry and rejections.

    Args:
        run_folder: ``results/RUN`` below the current folder, the checkout.
        patterns: ``deployment/point``; both may contain ``*`` and ``?``.

    Returns:
        The folder with the earlier results, by ``deployment/point``.

    Raises:
        NoSuchRun: there is no such run.
        NoSuchPoint: a pattern fits no point with a result. Nothing was changed.
        RunLocked: a run is using this checkout. Nothing was changed.
    """
    runs.require(run_folder)
    run_lock.claim(Path.cwd(), ["servemark", "remeasure", run_folder.name])
    try:
        config = read_resolved(run_folder / "config.json")
        ledger = Ledger(config.ledger_folder)
        found = {_name(path): path for path in record_files(run_folder, starts(config)) if path.exists() or list(_rejections(path))}
        for pattern in patterns:
            if not fnmatch.filter(found, pattern):
                named = "\n".join(f"  {name}" for name in list(found)[:_NAMED]) or "  none"
                more = f"\n  and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
                raise NoSuchPoint(
                    f"No point of run {run_folder.name} fits {pattern!r}. Points with a result:\n{named}{more}",
                    do="Write deployment/point, in quotes if it contains * or ?. The next run measures points without a result anyway.",
                )
        chosen = [name for name in found if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)]
        return {name: _set_aside(found[name], ledger) for name in chosen}
    finally:
        run_lock.release(Path.cwd())


def _name(record: Path) -> str:
    return f"{record.parent.parent.name}/{record.stem}"


def _rejections(record: Path) -> Iterator[Path]:
    """Yield the files of a point below ``rejected/``: records as ``POINT.N.json``, per-request results as ``POINT.N.raw``."""
    deployment = record.parent.parent
    for path in (deployment.parent.parent / "rejected" / deployment.name).glob("*"):
        if path.name.rpartition(".")[0].rpartition(".")[0] == record.stem:
            yield path


def _set_aside(path: Path, ledger: Ledger) -> Path:
    """Move everything about a point into a new folder and return it. The record goes last, so that a killed command can be repeated."""
    (ledger.root / REPLACED).mkdir(parents=True, exist_ok=True)
    place = Path(tempfile.mkdtemp(dir=ledger.root / REPLACED, prefix=f"{path.parent.parent.name}-{path.stem}-"))
    if record := Measurement.read_or_none(path):
        ledger.take_out(record.key, place)
    for one in (*_rejections(path), path.with_suffix(".requests.json"), path):
        if one.exists():
            shutil.move(one, place / one.name)
    return place
