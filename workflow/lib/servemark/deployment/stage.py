"""What every rule's script has while it works. Not in ``context``: most stages do not need the types of the configuration."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from servemark.processes.children import OwnerWatch
from servemark.progress import Progress
from servemark.records import Record
from servemark.supervisor import ownership


@dataclass(frozen=True)
class Stage:
    """Context of every rule's script. ``watch`` ends its tools with the owner process; ``deployment``: the deployment's folder, if any."""

    progress: Progress
    log: Path
    watch: OwnerWatch
    deployment: Path | None = None

    def write(self, record: Record, path: str) -> None:
        """Write a stage's record; raise TakenOver if another allocation owns the deployment."""
        self.check()
        record.write(path)

    def check(self) -> None:
        """Raise TakenOver if another allocation owns the deployment."""
        if self.deployment:
            ownership.check(self.deployment)
