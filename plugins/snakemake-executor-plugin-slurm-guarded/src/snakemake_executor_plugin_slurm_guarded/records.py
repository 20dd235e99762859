"""Parts of files: the checkout that wrote a note, and the account of a job."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class Checkout(BaseModel):
    """The working folder of a run. Part of every note that names a living process or job, so that a copy of the note harms neither.

    Attributes:
        path: resolved, as the machine that wrote the note has it.
        inode: number of the folder on its file system. A network file system gives it to every machine; a device number it does not.
        host: the machine that wrote the note. Login nodes of a shared disk have different names and the same inode.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: str
    inode: int
    host: str

    @classmethod
    def of(cls, folder: Path) -> Checkout:
        """Return the checkout whose top folder this is."""
        return cls(path=str(folder.resolve()), inode=folder.stat().st_ino, host=socket.gethostname())

    def is_at(self, folder: Path) -> bool:
        """Return whether ``folder`` is this checkout, and not a copy of it.

        The same path is the same checkout if the host (a restored backup has another inode) or the inode (another login node of a shared
        disk has another name) is the same too. Another path with the same inode was moved or is mounted elsewhere, unless the old path
        leads to another folder with that inode, on another disk.
        """
        here = Checkout.of(folder)
        if self.path == here.path:
            return self.host == here.host or self.inode == here.inode
        if self.inode != here.inode:
            return False
        try:
            old = os.stat(self.path)
        except OSError:
            return True
        return old.st_ino != self.inode or os.path.samestat(old, folder.stat())


class JobAccount(BaseModel):
    """One start of a job as the scheduler saw it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    job_id: str
    source: Literal["sacct", "scontrol", "journal", "none"] = Field(
        default="none", description="who told: accounting, the controller, or only what the run itself saw; none: nobody knows the job"
    )
    state: str = Field(description="the scheduler's word, e.g. COMPLETED, TIMEOUT; UNKNOWN when nobody knows the job or its end")
    exit_code: str | None = Field(default=None, description="CODE:SIGNAL")
    reason: str | None = None
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    nodes: tuple[str, ...] = ()
    gpus: int | None = Field(default=0, description="allocated, over all nodes; None when nobody told")
    cpus: int = 0
    submitted_at: str | None = None
    started_at: str | None = None
    ended_at: str | None = None
    queue_wait_s: float | None = None
    elapsed_s: float | None = None
    limit_s: float | None = None
    restarts: int = Field(default=0, description="starts of this job before this one")
