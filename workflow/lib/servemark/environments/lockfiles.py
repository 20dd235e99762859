"""The hash-locked lists in ``envs/``: for which machines each was made, and which of them fits the machine that was probed."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement

from servemark.errors import EnvironmentRefused
from servemark.records import Hardware

AUTO = "auto"
Version = tuple[int, int]
FOR_AARCH64 = "for aarch64 the package index has only a torch without CUDA at these versions"


@dataclass(frozen=True)
class Lock:
    """One hash-locked list, and what it needs of a machine.

    Attributes:
        pythons: CPython versions that it was made for, as (major, minor).
        machines: as ``uname -m`` spells them.
        glibc: the oldest C library that its wheels run on.
        cuda: the major version of CUDA that its torch was built for; None for a CPU build.
        driver: the oldest NVIDIA driver of which such a build runs, its major version. Source: NVIDIA, CUDA Compatibility,
            "Minor Version Compatibility".
        gib: room that building it takes, GiB: its files and the wheels that they come from.
        shim: a local package that is installed beside it.
        other_machines: why it is for no other machine.
    """

    name: str
    requirements: Path
    pythons: tuple[Version, ...]
    machines: tuple[str, ...] = ("x86_64",)
    glibc: Version = (2, 31)
    cuda: int | None = None
    driver: int | None = None
    gib: float = 0.0
    shim: Path | None = None
    other_machines: str = ""

    def sources(self) -> list[Path]:
        """Return the files that decide what is installed."""
        return [self.requirements, *(sorted(p for p in self.shim.glob("*") if p.is_file()) if self.shim else ())]

    def packages(self) -> list[str]:
        """Return ``name==version`` of what this interpreter installs on this machine: a lock holds alternatives for others as well."""
        lines = re.findall(r"^[A-Za-z0-9].*==.*?(?=\s+(?:\\|--hash)|$)", self.requirements.read_text(), re.MULTILINE)
        found = [Requirement(line) for line in lines]
        return [f"{one.name}{one.specifier}" for one in found if one.marker is None or one.marker.evaluate()]

    def digest(self, python: Version, machine: str) -> str:
        """Return sha256 over everything that decides what is installed for this interpreter on this kind of machine."""
        sha = hashlib.sha256(f"{python} {machine}\n".encode())
        for file in self.sources():
            sha.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
        return sha.hexdigest()


PYTHONS = ((3, 11), (3, 12), (3, 13))


def table(envs: Path) -> dict[str, Lock]:
    """Return every lock of the folder ``envs`` by its name, in the order in which ``auto`` prefers them.

    .ci/check_locks.py resolves each list for each of its interpreters and machines with its C library.
    """
    return {
        lock.name: lock
        for lock in (
            Lock("cuda13", envs / "cuda13.lock", PYTHONS, ("x86_64", "aarch64"), cuda=13, driver=580, gib=12),
            Lock("cuda12", envs / "cuda12.lock", PYTHONS, cuda=12, driver=525, gib=16, other_machines=FOR_AARCH64),
            Lock("cpu", envs / "cpu.lock", ((3, 11),), gib=3, shim=envs / "cpu-shim"),
        )
    }


NAMES = tuple(sorted(table(Path())))


def lacks(lock: Lock, hardware: Hardware, python: Version) -> tuple[str, ...]:
    """Return what this lock needs and the machine or the interpreter has not: one phrase each; empty if it can be installed and run.

    A machine without an NVIDIA driver has none that is too old: an environment may be built where it is of no use (:func:`misplaced`).
    """
    found = []
    if hardware.architecture not in lock.machines:
        why = f" ({lock.other_machines})" if lock.other_machines else ""
        found.append(f"{' or '.join(lock.machines)}{why}")
    if python not in lock.pythons:
        found.append(f"CPython {_range(lock.pythons)}")
    if _version(hardware.glibc) < lock.glibc:
        found.append(f"glibc {_dotted(lock.glibc)} or newer")
    if lock.cuda and hardware.driver and not _driver_can(hardware, lock):
        found.append(f"NVIDIA driver {lock.driver} or newer (CUDA {lock.cuda})")
    return tuple(found)


def misplaced(lock: Lock, hardware: Hardware) -> str | None:
    """Return why a lock that can be installed is not for this kind of machine."""
    if lock.cuda and hardware.accelerator == "cpu":
        return f"is for NVIDIA GPUs (driver {lock.driver} or newer)"
    if not lock.cuda and hardware.accelerator == "cuda":
        return "leaves the GPUs unused"
    return None


def choose(key: str, asked: str, envs: Path, hardware: Hardware, python: Version, machine: str) -> Lock:
    """Return the lock of the name ``asked`` if it fits; with ``auto`` the first that fits and is for this kind of machine.

    Args:
        key: what the configuration calls it, for messages.
        hardware: of the machine that will run the model.
        python: of the interpreter that builds the environment, which becomes the environment's own.
        machine: where it is built, as ``uname -m`` spells it.

    Raises:
        EnvironmentRefused: none fits; says what was found, what every lock needs, and the ways out.
    """
    if machine != hardware.architecture:
        raise EnvironmentRefused(
            f"{key}: the environment would be built on {machine} and run on {hardware.architecture} ({hardware.host}).",
            do="Write `build_on: job` in the cluster file: then it is built on a node of the right kind.",
            reason="no_lock_fits",
        )
    locks = table(envs)
    needs = {name: lacks(lock, hardware, python) for name, lock in locks.items()}
    fitting = [name for name, lock in locks.items() if not needs[name] and not misplaced(lock, hardware)]
    if asked != AUTO and not needs[asked]:
        return locks[asked]
    if asked == AUTO and fitting:
        return locks[fitting[0]]
    rows = []
    for name, lock in locks.items():
        why = [f"needs {', '.join(needs[name])}"] if needs[name] else []
        why += [text for text in [misplaced(lock, hardware)] if text]
        rows.append(f"  - {name} {' and '.join(why) or 'fits'}")
    raise EnvironmentRefused(
        "\n".join([f"{key}: {asked}: {'no list' if asked == AUTO else 'this list'} fits {_found(hardware, python)}:", *rows]),
        do=_ways_out(locks, needs, fitting, hardware, python),
        reason="no_lock_fits",
    )


def _ways_out(locks: dict[str, Lock], needs: dict[str, tuple[str, ...]], fitting: list[str], hardware: Hardware, python: Version) -> str:
    ways = [f"write `lock: {name}`" for name in fitting[:1]]
    usable = [lock for lock in locks.values() if not misplaced(lock, hardware)]
    if not ways:
        helpful = sorted({v for lock in usable for v in lock.pythons if v != python and not lacks(lock, hardware, v)})
        ways += [
            f"set the workflow up with another Python (rm -r .venv; make setup PYTHON=python{_dotted(version)})" for version in helpful[:1]
        ]
    if any("driver" in need for lock in usable for need in needs[lock.name]):
        ways.append("ask the administrators for a newer NVIDIA driver")
    ways.append("give environments.NAME.prefix, the folder of an environment that has vLLM and runs there")
    return f"One of these: {'; '.join(ways)}."


def _found(hardware: Hardware, python: Version) -> str:
    driver = f"NVIDIA driver {hardware.driver} (CUDA {hardware.cuda or 'unknown'})" if hardware.driver else "no NVIDIA driver"
    glibc = f"glibc {hardware.glibc}" if hardware.glibc else "no glibc"
    return f"{hardware.host} ({hardware.architecture}, {glibc}, {driver}) with CPython {_dotted(python)}"


def _driver_can(hardware: Hardware, lock: Lock) -> bool:
    # What nvidia-smi says of CUDA goes first: with NVIDIA's cuda-compat an older driver can do a newer one.
    if hardware.cuda:
        return _version(hardware.cuda)[0] >= (lock.cuda or 0)
    return _version(hardware.driver or "")[0] >= (lock.driver or 0)


def _version(text: str) -> Version:
    numbers = [int(number) for number in re.findall(r"\d+", text)[:2]]
    return (numbers[0], numbers[1] if len(numbers) > 1 else 0) if numbers else (0, 0)


def _dotted(version: Version) -> str:
    return ".".join(map(str, version))


def _range(versions: tuple[Version, ...]) -> str:
    return _dotted(versions[0]) if len(versions) == 1 else f"{_dotted(versions[0])} to {_dotted(versions[-1])}"
