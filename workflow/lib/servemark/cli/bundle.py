"""``servemark bundle``: collect the wheels of a lock file in a folder, for ``make setup`` and model environments without internet."""

import argparse
import json
import platform
import sys
from collections.abc import Callable
from pathlib import Path

from servemark.environments import lockfiles, own_lock, wheels
from servemark.environments.lockfiles import Lock, Version
from servemark.errors import EnvironmentRefused, ServemarkError
from servemark.files import storage
from servemark.files.content import Hashes
from servemark.records import write_atomically

MANIFEST = "bundle.json"


class CannotBundle(ServemarkError):
    """The lock file has no wheels for this interpreter or machine, or the folder is none."""

    exit_code = 2
    default_reason = "no_lock_fits"


def release(text: str) -> Version:
    """Return ``3.12`` as (3, 12).

    Raises:
        argparse.ArgumentTypeError: the text has another form.
    """
    major, dot, minor = text.partition(".")
    if not (dot and major.isascii() and major.isdigit() and minor.isascii() and minor.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is no version of Python such as 3.12")
    return int(major), int(minor)


def _lock(name: str, python: Version, machine: str) -> Lock:
    if own_lock.is_path(name):
        try:
            return lockfiles.own(name, lockfiles.ENVS, python, machine)
        except EnvironmentRefused as error:
            raise CannotBundle(error.what, do=error.do, reason=error.reason) from None
    locks = lockfiles.table(lockfiles.ENVS)
    if name not in locks:
        raise CannotBundle(f"There is no lock file {name}.", do=f"Name one of {', '.join(locks)}, or the path of your own lock file.")
    return locks[name]


def bundle(name: str, folder: Path, say: Callable[[str], object], *, python: Version | None, machine: str | None, test: bool) -> None:
    """Collect the wheels of a model environment's lock file and of ``make setup``, and write :data:`MANIFEST`.

    Args:
        python, machine: of the machine that will install them; default this interpreter and machine.
        test: also the wheels of ``make setup-test``.

    Raises:
        CannotBundle: the lock file cannot be used, or does not support this interpreter or machine.
        ServemarkError: the disk has too little space, or pip could not get a wheel.
    """
    # pip's temporary folder is below it.
    folder = folder.absolute()
    python, machine = python or sys.version_info[:2], machine or platform.machine()
    if folder.exists() and not folder.is_dir():
        raise CannotBundle(f"{folder} is no folder.", do="Name a folder; servemark makes it.")
    setup = lockfiles.of_setup(lockfiles.ENVS)
    locks = [setup["workflow"], *([setup["test"]] if test else []), _lock(name, python, machine)]
    for lock in locks:
        if machine not in lock.machines or python not in lock.pythons:
            releases = ", ".join(".".join(map(str, version)) for version in lock.pythons)
            raise CannotBundle(
                f"{lock.name} has no wheels for CPython {python[0]}.{python[1]} on {machine}. It has wheels for CPython {releases} on "
                f"{' and '.join(lock.machines)}.",
                do="Set --python and --machine to those of the cluster, or choose another lock file (docs/reference/environments.md).",
            )
        if urls := lock.of_urls(wheels.Target(python, machine, lock.glibc).markers):
            raise CannotBundle(
                f"{lock.name} takes {', '.join(urls)} from a URL, so an installation without internet is not possible.",
                do="Put these packages into a package index and pin them as NAME==VERSION.",
            )
    wheels.collect(locks, python, machine, folder, say)
    # Also the wheels of earlier calls, for other lock files and machines.
    paths = sorted(folder.glob("*.whl"))
    digests = Hashes(None, "").of([str(path) for path in paths])
    sizes = [path.stat().st_size for path in paths]
    files = [{"name": path.name, "sha256": digest, "bytes": size} for path, digest, size in zip(paths, digests, sizes, strict=True)]
    write_atomically(folder / MANIFEST, json.dumps({"files": files}, indent=2) + "\n")
    say(f"{folder}: {len(files)} wheels, {storage.size(sum(sizes))}; {MANIFEST} lists them. Next: docs/how-to/no-internet.md")
