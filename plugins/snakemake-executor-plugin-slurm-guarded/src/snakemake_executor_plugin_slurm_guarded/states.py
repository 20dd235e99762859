"""Slurm's state words and their meaning for a program that waits for a job. Words of squeue(1) and sacct(1) up to Slurm 25.05."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum


class Meaning(Enum):
    """What a state word means for a program that waits for the job's end."""

    WAITING = "waiting"
    RUNNING = "running"
    ENDING = "ending"
    SUCCESS = "success"
    FAILURE = "failure"
    UNKNOWN = "unknown"


_MEANINGS = {
    Meaning.WAITING: "PENDING CONFIGURING POWER_UP_NODE REQUEUED REQUEUE_FED REQUEUE_HOLD RESV_DEL_HOLD SPECIAL_EXIT",
    Meaning.RUNNING: "RUNNING SUSPENDED STOPPED SIGNALING RESIZING EXPEDITING",
    Meaning.ENDING: "COMPLETING STAGE_OUT UPDATE_DB",
    Meaning.SUCCESS: "COMPLETED",
    Meaning.FAILURE: "CANCELLED FAILED TIMEOUT DEADLINE OUT_OF_MEMORY NODE_FAIL BOOT_FAIL PREEMPTED REVOKED LAUNCH_FAILED RECONFIG_FAIL",
}
_BY_WORD = {word: meaning for meaning, words in _MEANINGS.items() for word in words.split()}

# Ends after which Slurm itself may start the job again under the same id, when the job allows it.
REQUEUED_BY_SLURM = frozenset(["PREEMPTED", "NODE_FAIL", "BOOT_FAIL"])

_CANCELLED_BY = re.compile(r"CANCELLED by (\d+)")


@dataclass(frozen=True)
class State:
    """A state as Slurm printed it. ``by`` is the user id after ``CANCELLED by``, which only sacct prints."""

    word: str
    by: int | None = None

    @classmethod
    def parse(cls, text: str) -> State:
        """Read one state field. A ``+`` at the end is sacct's mark for a cut word."""
        text = text.strip()
        if cancelled := _CANCELLED_BY.match(text):
            return cls("CANCELLED", int(cancelled[1]))
        first = text.split(maxsplit=1)[0] if text else ""
        return cls(first.rstrip("+").upper())

    @property
    def meaning(self) -> Meaning:
        """UNKNOWN for every word that is not in the tables above: never a success, never an end."""
        return _BY_WORD.get(self.word, Meaning.UNKNOWN)

    @property
    def ended(self) -> bool:
        """Whether Slurm has finished with the job (unless it requeues it)."""
        return self.meaning in (Meaning.SUCCESS, Meaning.FAILURE)
