"""One run at a time in a checkout, and no lock that outlives its owner.

Snakemake's own lock is a list of file names: after a crash its user must judge and type ``--unlock``. Our owner record has host, pid and
start time of the Snakemake that works here. A second run is refused with the first one's name. A dead owner's record and the locks in
``.snakemake/locks`` are removed with a message; so are those of another checkout, of which this one is a copy.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from filelock import FileLock
from pydantic import ValidationError

from servemark.errors import RunLocked
from servemark.processes.identity import Identity, myself
from servemark.records import Strict, utc_now, write_atomically
from snakemake_executor_plugin_slurm_guarded.records import Checkout

# Options of snakemake that run no jobs, besides a dry run: allowed while a run is alive. Short ones also within one word, as in -pS.
_LOOKING = re.compile(
    r"--(?:lint|dag|rulegraph|filegraph|d3dag|(?:detailed-)?summary|list(?:-[a-z-]+)?|l[tucip]|unlock|report|archive|version|help"
    r"|generate-unit-tests|containerize|cleanup-metadata|cm)(?:=.*)?|-[afFkpt]*[DhlSv].*"
)


class Owner(Strict):
    """The run that works in a checkout (None in a record of an older version)."""

    host: str
    pid: int
    identity: str
    since: str
    command: str
    checkout: Checkout | None = None

    @property
    def lives(self) -> bool:
        """Whether its process is alive. One on another host counts as alive, because nobody can check it from here."""
        return self.host != socket.gethostname() or Identity.parse(self.identity).alive


def executes(argv: Sequence[str], *, dry_run: bool) -> bool:
    """Return whether a call of snakemake runs jobs; ``dry_run`` as Snakemake read it from command line, profile and environment."""
    return not dry_run and not any(map(_LOOKING.fullmatch, argv))


def claim(workdir: Path, argv: Sequence[str], *, dry_run: bool = False) -> list[str]:
    """Claim the checkout that holds ``.snakemake``, unless this call of snakemake (``argv``) runs no jobs.

    Returns:
        Messages for the user about what an earlier, dead run left.

    Raises:
        RunLocked: another living run owns the checkout.
    """
    if not executes(argv, dry_run=dry_run):
        return []
    folder = workdir / ".snakemake"
    folder.mkdir(exist_ok=True)
    record = folder / "servemark-owner.json"
    with FileLock(folder / "servemark-owner.lock"):
        owner = _read(record)
        noted = owner.checkout if owner else None
        # The same path is never a copy: some file systems give each login node its own inode numbers.
        copied = noted is not None and noted.path != str(workdir.resolve()) and not noted.is_at(workdir)
        if owner and owner.lives and not copied:
            elsewhere = owner.host != socket.gethostname()
            raise RunLocked(
                f"Another run is at work in this directory: process {owner.pid} on {owner.host}, since {owner.since}\n  ({owner.command}).",
                do="Wait for it, or end it with Ctrl-C there; for a second run at the same time use a second checkout."
                + (f" If it is gone, or this directory is a copy from that machine, delete {record}." if elsewhere else ""),
            )
        me = Owner(
            host=socket.gethostname(),
            pid=os.getpid(),
            identity=str(myself()),
            since=utc_now(),
            command=shlex.join(argv),
            checkout=Checkout.of(workdir),
        )
        write_atomically(record, me.model_dump_json(indent=2) + "\n")
        return _remove_stale(folder / "locks", owner, copied=copied)


def release(workdir: Path) -> None:
    """Remove our claim."""
    record = workdir / ".snakemake" / "servemark-owner.json"
    owner = _read(record)
    if owner and owner.host == socket.gethostname() and owner.identity == str(myself()):
        record.unlink(missing_ok=True)


def _read(record: Path) -> Owner | None:
    try:
        owner = Owner.model_validate(json.loads(record.read_text()))
        Identity.parse(owner.identity)
        return owner
    except FileNotFoundError:
        return None
    except ValueError as error:
        why = f"{error.error_count()} fields do not fit" if isinstance(error, ValidationError) else error
        print(f"servemark: {record} is damaged ({why}). servemark treats it as a leftover and replaces it.", file=sys.stderr)
        return None


def _remove_stale(locks: Path, owner: Owner | None, *, copied: bool) -> list[str]:
    stale = list(locks.glob("*")) if locks.is_dir() else []
    for file in stale:
        file.unlink(missing_ok=True)
    if copied and owner and owner.checkout:
        where = f"{owner.checkout.path} (process {owner.pid} on {owner.host})"
        return [f"This directory is a copy: its run lock belongs to a run in {where}. Removed the copied lock."]
    if not stale:
        return []
    who = f"process {owner.pid}, started {owner.since}, is gone" if owner else "no run is alive here"
    return [f"An earlier run ended without unlocking the directory ({who}); removed its lock. Finished work is kept."]
