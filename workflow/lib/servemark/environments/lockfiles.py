"""The lock files in ``envs/``: the machines that each supports, and the one that fits the probed machine."""

import hashlib
import math
import re
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement

from servemark.errors import EnvironmentRefused
from servemark.records import Hardware

AUTO = "auto"
Version = tuple[int, int]


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

    @property
    def gib(self) -> int:
        """Return the disk space of a build with its wheels, in GiB."""
        return math.ceil(self.wheels_gib + self.installed_gib)

    def sources(self) -> list[Path]:
        """Return the lock file and the files of the shim."""
        return [self.requirements, *(sorted(p for p in self.shim.glob("*") if p.is_file()) if self.shim else ())]

    def packages(self) -> list[str]:
        """Return ``name==version`` of each package for this interpreter and machine. The file has packages for others too."""
        lines = re.findall(r"^[A-Za-z0-9].*==.*?(?=\s+(?:\\|--hash)|$)", self.requirements.read_text(), re.MULTILINE)
        found = [Requirement(line) for line in lines]
        return [f"{one.name}{one.specifier}" for one in found if one.marker is None or one.marker.evaluate()]

    def digest(self, python: Version, machine: str) -> str:
        """Return the sha256 (hex) of the interpreter's version, the machine's architecture and :meth:`sources`."""
        sha = hashlib.sha256(f"{python} {machine}\n".encode())
        for file in self.sources():
            sha.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
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


NAMES = tuple(sorted(table(Path())))


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
        EnvironmentRefused: no lock file fits. The message lists the requirements of each.
    """
    if machine != hardware.architecture:
        raise EnvironmentRefused(
            f"{key}: the environment would be built on {machine} and run on {hardware.architecture} ({hardware.host}).",
            do="Set `build_on: job` in the cluster file: then a node of the right kind builds it.",
            reason="no_lock_fits",
        )
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
