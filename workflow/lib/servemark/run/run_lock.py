"""The run lock: one run at a time in a checkout, and no lock of a dead run.

Snakemake's own lock does not name its owner, so after a crash the user must decide on ``--unlock``. servemark's owner record contains
host, pid and start time of the Snakemake process in this checkout. A second run is refused, and the message names the first. If the owner
is dead, or the record belongs to a checkout of which this one is a copy, servemark removes the record and ``.snakemake/locks``.
"""

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

# Options of snakemake that run no jobs, in addition to a dry run; short ones also within one word, as in -pS.
_READ_ONLY = re.compile(
    r"--(?:lint|dag|rulegraph|filegraph|d3dag|(?:detailed-)?summary|list(?:-[a-z-]+)?|l[tucip]|unlock|report|archive|version|help"
    r"|generate-unit-tests|containerize|cleanup-metadata|cm)(?:=.*)?|-[afFkpt]*[DhlSv].*"
)
_UNTIL = re.compile(r"--until(?:=.*)?|-[afFkpt]*U.*")


class Owner(Strict):
    """The run in a checkout. ``checkout``: None in a record of an older version."""

    host: str
    pid: int
    identity: str
    since: str
    command: str
    checkout: Checkout | None = None

    @property
    def lives(self) -> bool:
        """Whether its process is alive. A process on another host counts as alive, because this host cannot check it."""
        return self.host != socket.gethostname() or Identity.parse(self.identity).alive


def executes(argv: Sequence[str], *, dry_run: bool) -> bool:
    """Return whether a call of snakemake runs jobs; ``dry_run``: Snakemake's value from command line, profile and environment."""
    return not dry_run and not any(map(_READ_ONLY.fullmatch, argv))


def ends_early(argv: Sequence[str]) -> bool:
    """Return whether a call of snakemake names the rules or files to end with (``--until``), as one that only stages weights."""
    return any(map(_UNTIL.fullmatch, argv))


def claim(workdir: Path, argv: Sequence[str], *, dry_run: bool = False) -> list[str]:
    """Lock the checkout in ``workdir``, unless this call of snakemake (``argv``) runs no jobs; return messages for the user.

    Raises:
        RunLocked: another run that is alive owns the checkout.
    """
    if not executes(argv, dry_run=dry_run):
        return []
    folder = workdir / ".snakemake"
    folder.mkdir(exist_ok=True)
    record = folder / "servemark-owner.json"
    with FileLock(folder / "servemark-owner.lock"):
        owner = _read(record)
        noted = owner.checkout if owner else None
        # The same path is never a copy: on some file systems each login node has its own inode numbers.
        copied = noted is not None and noted.path != str(workdir.resolve()) and not noted.is_at(workdir)
        if owner and owner.lives and not copied:
            elsewhere = owner.host != socket.gethostname()
            raise RunLocked(
                f"Another run is using this directory: process {owner.pid} on {owner.host}, since {owner.since}\n  ({owner.command}).",
                do="Wait for it, or end it with Ctrl-C there. For a second run at the same time, use a second checkout."
                + (f" If that run has ended, or this directory is a copy from that machine, delete {record}." if elsewhere else ""),
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
    """Remove this process's lock."""
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
        print(f"servemark: {record} is damaged ({why}). servemark replaces it.", file=sys.stderr)
        return None


def _remove_stale(locks: Path, owner: Owner | None, *, copied: bool) -> list[str]:
    stale = list(locks.glob("*")) if locks.is_dir() else []
    for file in stale:
        file.unlink(missing_ok=True)
    if copied and owner and owner.checkout:
        where = f"{owner.checkout.path} (process {owner.pid} on {owner.host})"
        return [f"This directory is a copy, and its run lock belongs to a run in {where}. servemark removed the copied lock."]
    if not stale:
        return []
    who = f"process {owner.pid}, started {owner.since}, does not exist" if owner else "no run is alive here"
    return [f"An earlier run did not unlock this directory ({who}). servemark removed its lock. Finished work is kept."]
