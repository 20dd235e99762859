"""Which checkout a record in it was written in, so that a copy of it acts on nothing that belongs to the original."""

from __future__ import annotations

import os
from pathlib import Path

from servemark.processes import identity
from servemark.records import Strict


class Checkout(Strict):
    """One checkout. Noted in everything that names a living process or job.

    Attributes:
        path: resolved, as the machine that wrote the note has it.
        inode: number of the folder on its file system. A network file system gives it to every machine; a device number it does not.
        host: the machine that wrote the note. Login nodes of a shared disk have different names and the same inode.
    """

    path: str
    inode: int
    host: str

    @classmethod
    def of(cls, folder: Path) -> Checkout:
        """Return the checkout whose top folder this is."""
        return cls(path=str(folder.resolve()), inode=folder.stat().st_ino, host=identity.host())

    def is_at(self, folder: Path) -> bool:
        """Return whether ``folder`` is this checkout, and not a copy of it.

        The same path is the same checkout if the host or the inode is the same too. A backup restored on the same host has another inode.
        Another login node of a shared disk has another name and finds the same inode. If both differ, ``folder`` is a copy on another
        machine's own disk. Another path with the same inode is the same checkout: it was moved, or is mounted elsewhere. It is a copy if
        the old path leads to another folder with that inode, on another disk.
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
