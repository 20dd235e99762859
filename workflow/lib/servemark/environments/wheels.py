"""Wheels of lock files in a folder: ``servemark bundle`` downloads them, and a build without network installs them.

pip compares the markers of a lock file with its own interpreter, also for another machine (``--platform``). So servemark chooses the
packages of a machine itself, and gives them to pip without markers.
"""

import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from packaging import tags
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion
from packaging.version import Version as Release

from servemark.environments.lockfiles import Lock, Package, Version
from servemark.errors import EnvironmentRefused
from servemark.files import storage
from servemark.files.content import Hashes
from servemark.variables import passed_on

TOGETHER = 8
"""Packages of one call of pip. pip writes wheels to their folder at the end of a call, so an interruption loses at most these."""
FAILURES = 3
"""After so many failures in a row no index responds, and each further package would take pip's retries."""
NAMED = 10
"""A message names at most so many packages."""
_SCRATCH = ".pip-"
_OLDEST_GLIBC = {"x86_64": 5, "aarch64": 17}
_ALIASES = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
"""Older names of manylinux_2_N (PEP 600)."""


@dataclass(frozen=True)
class Target:
    """The interpreter and machine that will install the wheels: Linux and CPython.

    Attributes:
        python: (major, minor).
        machine: architecture, as of ``uname -m``.
        glibc: the oldest C library that the wheels must support.
    """

    python: Version
    machine: str
    glibc: Version

    @property
    def markers(self) -> dict[str, str]:
        """The values of environment markers there."""
        release = ".".join(map(str, self.python))
        return {
            "python_version": release,
            "python_full_version": f"{release}.0",
            "platform_machine": self.machine,
            "sys_platform": "linux",
            "platform_system": "Linux",
            "os_name": "posix",
            "implementation_name": "cpython",
            "platform_python_implementation": "CPython",
        }

    @property
    def platforms(self) -> list[str]:
        """The platform tags there, best first."""
        minors = range(self.glibc[1], _OLDEST_GLIBC.get(self.machine, 17) - 1, -1)
        names = [name for minor in minors for name in (f"manylinux_2_{minor}", _ALIASES.get(minor)) if name]
        return [f"{name}_{self.machine}" for name in [*names, "linux"]]

    @property
    def tags(self) -> frozenset[tags.Tag]:
        """The tags of wheels that can be installed there."""
        interpreter = "cp" + "".join(map(str, self.python))
        binary = tags.cpython_tags(self.python, platforms=self.platforms)
        return frozenset([*binary, *tags.compatible_tags(self.python, interpreter, self.platforms)])


def without_wheel(packages: Sequence[Package], folder: Path, usable: Collection[tags.Tag], hashes: Hashes | None) -> dict[Package, str]:
    """Return the packages without a usable wheel in the folder, with a phrase that states why.

    Args:
        usable: tags of the wheels that count.
        hashes: compares each wheel with the lock file; None: compare the names only.
    """
    there = _wheels(packages, folder, usable)
    paths = [str(path) for several in there.values() for path in several]
    digests = dict(zip(paths, hashes.of(paths), strict=True)) if hashes else {}
    found = {}
    for package, several in there.items():
        if not several:
            found[package] = "there is no wheel"
        elif hashes and not any(digests[str(path)] in package.hashes for path in several):
            found[package] = f"{', '.join(path.name for path in several)} differs from the lock file"
    return found


def fault(lock: Lock, folder: Path, hashes: Hashes | None) -> str | None:
    """Return which wheels of the lock file for this interpreter a folder does not have, in one sentence; None if it has all.

    Args:
        hashes: as of :func:`without_wheel`.
    """
    if urls := lock.of_urls():
        return f"{lock.name} takes {', '.join(urls)} from a URL, and pip would fetch it in spite of {folder}"
    packages = lock.locked()
    if not (found := without_wheel(packages, folder, frozenset(tags.sys_tags()), hashes)):
        return None
    texts = [f"{package.pin} ({why})" for package, why in found.items()]
    more = f" and {len(texts) - NAMED} more" if len(texts) > NAMED else ""
    return f"{len(texts)} of the {len(packages)} wheels of {lock.name} are not usable in {folder}: {', '.join(texts[:NAMED])}{more}"


def require(lock: Lock, folder: Path) -> None:
    """Check that a folder has a wheel of each package of the lock file for this interpreter, with a hash of the lock file.

    Raises:
        EnvironmentRefused: wheels are missing or differ; the message names them.
    """
    if why := fault(lock, folder, Hashes(None, "")):
        major, minor = sys.version_info[:2]
        raise EnvironmentRefused(
            f"{why}.",
            do="On a machine with internet, run "
            f"`servemark bundle {lock.name} DIR --python {major}.{minor} --machine {platform.machine()}`. Then copy the folder again.",
            reason="wheels_missing",
        )


def collect(locks: Sequence[Lock], python: Version, machine: str, folder: Path, say: Callable[[str], object]) -> None:
    """Download the wheels of lock files that are missing in a folder.

    Finished wheels are kept, so after an interruption a second call continues.

    Raises:
        EnvironmentRefused: the disk has too little space, or pip could not get a wheel; the message names each.
        StorageRefused: the disk is full or takes no files.
    """
    storage.require(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for left in folder.glob(f"{_SCRATCH}*"):
        shutil.rmtree(left, ignore_errors=True)
    hashes, failed = Hashes(None, ""), dict[Package, str]()
    targets = {lock: Target(python, machine, lock.glibc) for lock in locks}
    packages = {lock: lock.locked(target.markers) for lock, target in targets.items()}
    missing = {lock: list(without_wheel(packages[lock], folder, target.tags, hashes)) for lock, target in targets.items()}
    unfinished = [lock for lock in locks if missing[lock]]
    usable = [_wheels(set(packages[lock]) - set(missing[lock]), folder, targets[lock].tags) for lock in unfinished]
    _check_room(unfinished, {path for there in usable for several in there.values() for path in several}, folder)
    for lock, target in targets.items():
        total, wanted = len(packages[lock]), missing[lock]
        have = total - len(wanted)
        say(f"{lock.name}: {have} of {total} wheels are in {folder}")
        for first in range(0, len(wanted), TOGETHER):
            some = wanted[first : first + TOGETHER]
            faults = _fetch(some, target, folder)
            # pip has compared the hashes of what it downloaded. Check what it wrote.
            faults |= {one: why for one, why in without_wheel(some, folder, target.tags, hashes).items() if one not in faults}
            failed |= faults
            have += len(some) - len(faults)
            say(f"{lock.name}: {have} of {total} wheels")
            if len(faults) >= FAILURES and len(faults) == len(some):
                failed |= dict.fromkeys(wanted[first + TOGETHER :], "not tried")
                break
    if failed:
        raise _failure(failed, python, machine)


def _wheels(packages: Iterable[Package], folder: Path, usable: Collection[tags.Tag]) -> dict[Package, list[Path]]:
    """Return the folder's usable wheels of each package, by their names."""
    wheels: dict[tuple[str, Release], list[Path]] = {}
    for path in sorted(folder.glob("*.whl")):
        with suppress(InvalidWheelFilename, InvalidVersion):
            name, version, _, its = parse_wheel_filename(path.name)
            if not its.isdisjoint(usable):
                wheels.setdefault((name, version), []).append(path)
    return {package: wheels.get(_key(package), []) for package in packages}


def _key(package: Package) -> tuple[str, Release]:
    name, _, version = package.pin.partition("==")
    return canonicalize_name(name), Release(version)


def _check_room(locks: Sequence[Lock], present: Collection[Path], folder: Path) -> None:
    needed = sum(lock.wheels_gib for lock in locks) * 2**30 - sum(path.stat().st_size for path in present)
    if shutil.disk_usage(folder).free < needed:
        raise EnvironmentRefused(
            f"The wheels take about {storage.size(int(needed))} more in {folder}; {storage.free_words(folder)}.",
            do="Free space there, or name a folder on a larger disk.",
            reason="no_room",
        )


def _fetch(packages: Sequence[Package], target: Target, folder: Path) -> dict[Package, str]:
    """Download packages with one call of pip; if it fails, with one call for each. Return the packages that fail, with pip's reason."""
    if not (error := _pip(packages, target, folder)):
        return {}
    if len(packages) == 1:
        return {packages[0]: error}
    found: dict[Package, str] = {}
    for number, package in enumerate(packages):
        if len(found) == number == FAILURES:
            return found | dict.fromkeys(packages[number:], "not tried")
        found |= _fetch([package], target, folder)
    return found


def _pip(packages: Sequence[Package], target: Target, folder: Path) -> str | None:
    """Download packages with one call of pip. Return pip's error; None if it succeeds."""
    release = ".".join(map(str, target.python))
    chosen = [word for platform in target.platforms for word in ("--platform", platform)]
    with tempfile.TemporaryDirectory(dir=folder, prefix=_SCRATCH) as scratch:
        requirements = Path(scratch, "requirements.txt")
        requirements.write_text("".join(_line(package) for package in packages))
        # pip keeps the wheels of a call in its temporary folder until the end. /tmp is often too small for them.
        env = passed_on.clean_environment({"PIP_DISABLE_PIP_VERSION_CHECK": "1", "TMPDIR": scratch})
        argv = [sys.executable, "-m", "pip", "download", "--no-input", "--progress-bar", "off", "--require-hashes", "--no-deps"]
        argv += ["--only-binary", ":all:", "--implementation", "cp", "--python-version", release, *chosen]
        argv += ["--dest", str(folder), "-r", str(requirements)]
        done = subprocess.run(argv, env=env, capture_output=True, text=True, errors="replace")
        if done.returncode == 0:
            return None
        if refused := storage.refusal(storage.stated(done.stderr), folder):
            raise refused
        return "; ".join(_errors(done.stderr)) or f"pip ended with exit code {done.returncode}"


def _line(package: Package) -> str:
    return " ".join([package.pin, *(f"--hash=sha256:{one}" for one in sorted(package.hashes))]) + "\n"


def _errors(text: str) -> Iterator[str]:
    lines = text.splitlines()
    quoted = [line.strip() for line in lines if line.startswith("ERROR:")]
    # pip's last error names the package; the first one lists every version of the index.
    yield from (line.removeprefix("ERROR: ")[:300] for line in quoted[-1:] or lines[-1:])


def _failure(failed: dict[Package, str], python: Version, machine: str) -> EnvironmentRefused:
    rows = [f"  - {package.pin}: {why}" for package, why in failed.items()]
    do = "See the package index with `python3 -m pip config list`, then rerun the same command: finished wheels are kept."
    if any("+cpu" in package.pin for package in failed):
        do = "Add PyTorch's CPU index to pip's configuration (docs/reference/environments.md shows how), then rerun the same command."
    release = ".".join(map(str, python))
    what = f"pip could not get {len(failed)} wheels for CPython {release} on {machine}:"
    return EnvironmentRefused("\n".join([what, *rows]), do=do, reason="wheels_missing")
