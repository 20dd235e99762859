"""The final check's part on accuracy checks: move failed ones aside, so that the next run repeats only these.

As for load points, a check that fails twice for the same reason becomes a permanent gap, unless the reason lies outside it.
"""

import fnmatch
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from servemark.measurement.accuracy import STAGE
from servemark.measurement.reasons import OUTSIDE, remedy
from servemark.records import Accuracy, Failure


@dataclass(frozen=True)
class FailedCheck:
    """A failed accuracy check; ``kept`` states why it is a permanent gap, and is None if the next run repeats it."""

    path: Path
    record: Accuracy
    failure: Failure
    kept: str | None

    @property
    def name(self) -> str:
        """DEPLOYMENT/CHECK."""
        return f"{self.record.deployment}/{self.record.check.name}"

    @property
    def hole(self) -> dict[str, str]:
        """The entry of check.json."""
        detail = f"{self.failure.detail} ({self.kept})".replace("\n", " | ")
        return {"deployment": self.record.deployment, "point": self.record.check.name, "reason": self.failure.reason, "detail": detail}

    def lines(self) -> list[str]:
        """Return the lines of summary.txt."""
        failure, detail = self.failure, self.failure.detail.replace("\n", "\n      | ")
        rows = {"detail": detail, "log": failure.log or "-", "remedy": failure.remedy or remedy(failure.reason)}
        head = f"  {self.name}  {failure.reason}{f' ({self.kept})' if self.kept else ''}"
        return [head, *(f"    {label}: {text}" for label, text in rows.items())]


def failed(run_folder: Path, found: Iterable[Accuracy], accept_invalid: bool | Sequence[str]) -> list[FailedCheck]:
    """Return the failed accuracy checks of a run. ``accept_invalid``: as for load points, with patterns on DEPLOYMENT/CHECK."""
    patterns: Sequence[Any] = accept_invalid if not isinstance(accept_invalid, bool) else ["*"] if accept_invalid else []
    return [
        FailedCheck(
            Accuracy.path(run_folder / "deployments" / one.deployment, one.check.name), one, one.failure, _kept(run_folder, one, patterns)
        )
        for one in found
        if one.failure is not None
    ]


def _kept(run_folder: Path, record: Accuracy, patterns: Sequence[str]) -> str | None:
    assert record.failure, "only failed checks are judged"
    if any(fnmatch.fnmatchcase(f"{record.deployment}/{record.check.name}", pattern) for pattern in patterns):
        return "accepted by accept_invalid"
    # A check that did not run, because the deployment failed or its task could not be read, always runs again.
    if record.failure.stage != STAGE or record.failure.reason in (*OUTSIDE, "content_changed"):
        return None
    earlier = map(Accuracy.read_or_none, sorted(_folder(run_folder, record).glob(f"{record.check.name}.*.json")))
    same = (one for one in earlier if one and one.failure and one.check.key == record.check.key)
    return "failed again for the same reason" if any(one.failure and one.failure.reason == record.failure.reason for one in same) else None


def move(run_folder: Path, one: FailedCheck) -> None:
    """Move the record of a failed check to ``rejected/DEPLOYMENT/checks/CHECK.N.json``."""
    folder = _folder(run_folder, one.record)
    folder.mkdir(parents=True, exist_ok=True)
    number = 1
    while (folder / f"{one.record.check.name}.{number}.json").exists():
        number += 1
    shutil.move(one.path, folder / f"{one.record.check.name}.{number}.json")


def details(found: Sequence[FailedCheck]) -> list[str]:
    """Return the lines of summary.txt about failed checks; empty without one."""
    if not found:
        return []
    head = f"Accuracy checks without a result ({len(found)}). The measured points keep their verdicts."
    return [head, *(line for one in found for line in one.lines()), ""]


def _folder(run_folder: Path, record: Accuracy) -> Path:
    return run_folder / "rejected" / record.deployment / "checks"
