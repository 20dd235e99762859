"""Deployments whose job waits in Slurm's queue: position and expected start."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from servemark.display.tail import Tail
from snakemake_executor_plugin_slurm_guarded import queries, reasons
from snakemake_executor_plugin_slurm_guarded.commands import CommandFailed
from snakemake_executor_plugin_slurm_guarded.queries import Pending

# The interval of queries; each lists all waiting jobs of the cluster, and a display must not burden slurmctld.
EVERY_S = 60.0
STAGE = "queue"


@dataclass
class Queue:
    """Follows the executor's journal, and asks Slurm about the jobs that wait."""

    journal: Tail
    ask: Callable[[], list[Pending]] = queries.pending
    _deployments: dict[str, str] = field(default_factory=dict)
    _since: dict[str, float] = field(default_factory=dict)
    _next: float = 0.0

    @classmethod
    def of(cls, run_folder: Path) -> Queue:
        """Return the queue of a run that begins now."""
        return cls(Tail(run_folder / "slurm" / "jobs.jsonl"))

    def ended(self) -> list[str]:
        """Read the journal; return the deployments whose job has ended since the last call."""
        over = []
        for entry in self.journal.lines():
            job, event = str(entry.get("job")), entry.get("event")
            deployment = (entry.get("wildcards") or {}).get("deployment")
            if event == "submitted" and deployment:
                self._deployments[job], self._since[job] = deployment, float(entry["time"])
                self._next = 0.0
            elif event == "ended" and job in self._deployments:
                self._since.pop(job, None)
                over.append(self._deployments.pop(job))
        return over

    def lines(self, now: float) -> list[dict[str, Any]]:
        """Return a line of progress for each deployment that waits, once a minute; none if Slurm does not respond."""
        if not self._since or now < self._next:
            return []
        self._next = now + EVERY_S
        try:
            pending = self.ask()
        except CommandFailed:
            return []
        waiting = {one.id for one in pending}
        self._since = {job: since for job, since in self._since.items() if job in waiting}
        return [self._line(job, in_words(job, pending), now) for job in self._since]

    def _line(self, job: str, text: str, now: float) -> dict[str, Any]:
        waited = round(now - self._since[job], 1)
        return {"time": now, "stage": STAGE, "subject": self._deployments[job], "text": text, "waiting": waited}


def in_words(job: str, pending: list[Pending]) -> str:
    """Return position among the waiting jobs that Slurm shows to this user, expected start, and reason."""
    mine = next(one for one in pending if one.id == job)
    before = sum(one.partition == mine.partition and one.priority > mine.priority for one in pending)
    text = f"job {job} is number {before + 1} in the queue of partition {mine.partition}"
    if mine.start:
        text += f", expected start {mine.start.replace('T', ' ')}"
    return text + (f": {reasons.in_words(mine.reason)}" if mine.reason else "")
