"""Records in files: the checkout of a run, and the account of a job."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class Checkout(BaseModel):
    """The working folder of a run. Part of every file that names a process or job to be ended, so that a copied file ends none.

    Attributes:
        path: resolved, on the machine that wrote the file.
        inode: of the folder. It is the same on every machine of a network file system; a device number is not.
        host: the machine that wrote the file. Login nodes with a shared disk have different names and the same inode.
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

        The same path is the same checkout if the host is the same too (a restored backup has another inode), or the inode (another login
        node has another name). Another path with the same inode is the same checkout, moved or mounted elsewhere. The exception: the old
        path still leads to a folder with that inode, on another disk.
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
    """One start of a job in the scheduler's accounts."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    job_id: str
    source: Literal["sacct", "scontrol", "journal", "none"] = Field(
        default="none", description="accounting, the controller or the run's own journal; none: none of them has the job"
    )
    state: str = Field(description="the scheduler's word, e.g. COMPLETED, TIMEOUT; UNKNOWN if no source has the job or its end")
    exit_code: str | None = Field(default=None, description="CODE:SIGNAL")
    reason: str | None = None
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    nodes: tuple[str, ...] = ()
    gpus: int | None = Field(default=0, description="allocated, over all nodes; None if no source lists them")
    cpus: int = 0
    submitted_at: str | None = None
    started_at: str | None = None
    ended_at: str | None = None
    queue_wait_s: float | None = None
    elapsed_s: float | None = None
    limit_s: float | None = None
    restarts: int = Field(default=0, description="starts of this job before this one")
