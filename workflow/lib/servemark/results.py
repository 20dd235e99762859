"""What becomes of a run's files at the end: what goes into the archive, and the gate."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from servemark.errors import ServemarkError
from servemark.keeper import SECRETS
from servemark.measurement import quarantine
from servemark.measurement.ledger import Ledger
from servemark.progress import Progress
from servemark.records import Check, Measurement, Plan, write_atomically
from servemark.report import table

# Tokens of a live deployment, what describes the run's own machinery, and the archive itself stay out.
_LEFT_OUT = frozenset(
    {
        "cluster.json",
        "endpoint.json",
        "ready.json",
        "keeper-spec.json",
        "progress.jsonl",
        "stage",
        "summary.txt",
        # The scheduler's side of the run writes these while the archive is made; accounting.json has what matters of them.
        "jobs.jsonl",
        "guard.log",
        *SECRETS,
    }
)
# The gate's own record comes after the archive; an environment's of the same name belongs to it.
_LATER = Path("check.json")
# What is held for use is no measurement; tools/ and requests/ are how processes were started, also told by their records.
_LEFT_OUT_FOLDERS = frozenset({"archive", "ledger", "requests", "tools", "serving"})
# These rules write their logs while or after the archive is made.
_LATE = ("archive_results", "check_measurements")


def archived_files(run_folder: Path, envs: Path) -> dict[str, Path]:
    """Name in the archive -> file: every record, raw result, log, table and page of the run, and the environments' lists.

    Load points that an earlier configuration left beside the planned ones stay out.
    """
    files = {}
    planned = {
        (run_folder / "deployments" / plan.deployment / "points" / f"{point.name}{suffix}")
        for plan in (Plan.read(path) for path in run_folder.glob("deployments/*/plan.json"))
        for point in plan.points
        for suffix in (".json", ".requests.json")
    }
    for path in sorted(run_folder.rglob("*")):
        inside = path.relative_to(run_folder)
        if path.is_symlink() or not path.is_file() or path.name in _LEFT_OUT or path.name.startswith("."):
            continue
        if inside == _LATER:
            continue
        if inside.parts[0] == "deployments" and path.parent.name == "points" and path not in planned:
            continue
        if _LEFT_OUT_FOLDERS.intersection(inside.parts[:-1]) or path.stem in _LATE:
            continue
        files[inside.as_posix()] = path
    for path in sorted(envs.rglob("*")):
        if (
            path.is_file()
            and path.suffix in (".lock", ".in", ".toml", ".py", ".md")
            and "__pycache__" not in path.parts
        ):
            files[f"envs/{path.relative_to(envs).as_posix()}"] = path
    return files


def live_secrets(run_folder: Path) -> list[str]:
    """Keys and tokens of attempts that have not been cleaned up: none of them may be in the archive."""
    return [
        path.read_text().strip() for name in SECRETS for path in run_folder.glob(f"deployments/*/attempts/*/{name}")
    ]


def gate(
    run_folder: Path, records: Iterable[str], ledger: Ledger, accept_invalid: bool | Sequence[str], progress: Progress
) -> Check:
    """Set INVALID measurements aside and fail, or pass and name the holes; writes summary.txt either way.

    Raises:
        ServemarkError: at least one measurement has to be made again.
    """
    found = {Path(path): Measurement.read(path) for path in records}
    answer = quarantine.gate(found, run_folder / "rejected", accept_invalid)
    for path in answer.moved.values():
        ledger.forget(Measurement.read(path).key)
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
            f"{len(answer.moved)} of {len(found)} measurements are INVALID: they are no figures, and are kept in "
            f"{run_folder / 'rejected'}.\n{answer.table}",
            look=str(run_folder / "report.html"),
            do="Mend the cause and run the same command again: exactly these are measured again.",
            reason="invalid_measurements",
        )
    progress.say(f"{answer.valid} VALID, {answer.suspect} SUSPECT, {len(answer.holes)} accepted holes")
    return Check(run=name, valid=answer.valid, suspect=answer.suspect, holes=answer.holes)
