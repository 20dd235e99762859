"""What a rule's script gets around its work."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from servemark.processes.children import LifelineWatch
from servemark.progress import Progress
from servemark.records import Record
from servemark.supervisor import ownership


@dataclass(frozen=True)
class Stage:
    """What a script gets: where to tell progress, the log, and the watch that ties its tools to the run."""

    progress: Progress
    log: Path
    watch: LifelineWatch
    deployment: Path | None = None

    def write(self, record: Record, path: str) -> None:
        """Write a stage's record, unless another allocation has taken the deployment over meanwhile.

        Raises:
            TakenOver: it has.
        """
        self.check()
        record.write(path)

    def check(self) -> None:
        """Raise TakenOver if another allocation works on the deployment now; before a file of its is written."""
        if self.deployment:
            ownership.check(self.deployment)
