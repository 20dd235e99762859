"""Slurm's job states, in the words of squeue(1) and sacct(1) up to Slurm 25.05."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum


class Meaning(Enum):
    """What a state word means. An unlisted word is UNKNOWN: neither a success nor an end."""

    WAITING = "PENDING CONFIGURING POWER_UP_NODE REQUEUED REQUEUE_FED REQUEUE_HOLD RESV_DEL_HOLD SPECIAL_EXIT"
    RUNNING = "RUNNING SUSPENDED STOPPED SIGNALING RESIZING EXPEDITING"
    ENDING = "COMPLETING STAGE_OUT UPDATE_DB"
    SUCCESS = "COMPLETED"
    FAILURE = "CANCELLED FAILED TIMEOUT DEADLINE OUT_OF_MEMORY NODE_FAIL BOOT_FAIL PREEMPTED REVOKED LAUNCH_FAILED RECONFIG_FAIL"
    UNKNOWN = ""


_BY_WORD = {word: meaning for meaning in Meaning for word in meaning.value.split()}

# Ends after which Slurm may start the job again under the same id, if the job allows it.
REQUEUED_BY_SLURM = frozenset(["PREEMPTED", "NODE_FAIL", "BOOT_FAIL"])


@dataclass(frozen=True)
class State:
    """A state as Slurm printed it. ``by``: the user id in sacct's ``CANCELLED by ID``."""

    word: str
    by: int | None = None

    @classmethod
    def parse(cls, text: str) -> State:
        """Read one state field. sacct ends a truncated word with ``+``."""
        if cancelled := re.match(r"\s*CANCELLED by (\d+)", text):
            return cls("CANCELLED", int(cancelled[1]))
        return cls("".join(text.split()[:1]).rstrip("+").upper())

    @property
    def meaning(self) -> Meaning:
        """The meaning of the word."""
        return _BY_WORD.get(self.word, Meaning.UNKNOWN)

    @property
    def ended(self) -> bool:
        """Whether Slurm has finished with the job (unless it requeues it)."""
        return self.meaning in (Meaning.SUCCESS, Meaning.FAILURE)
