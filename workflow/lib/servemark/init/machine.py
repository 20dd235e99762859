"""Facts about this machine: hardware, networks, file systems, loaded modules. Each source may fail without the others."""

import os
import shutil
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from servemark.errors import ServemarkError
from servemark.files import storage
from servemark.machine import hardware
from servemark.records import Hardware

PLACES = (
    "PROJECT", "PROJECTDIR", "PROJECT_HOME", "PROJWORK", "GROUP_HOME", "WORK", "HPCWORK", "WORKSPACE", "WORKDIR", "DATA",
    "SCRATCH", "PSCRATCH", "CSCRATCH", "SCRATCHDIR", "GROUP_SCRATCH",
)  # fmt: skip
"""Variables by which sites name large folders. Project folders come first, because many sites delete old files in scratch folders."""

SHARED = frozenset(
    ("nfs", "nfs4", "lustre", "gpfs", "beegfs", "fhgfs", "ceph", "fuse.ceph", "wekafs", "panfs", "glusterfs", "fuse.glusterfs", "orangefs",
     "pvfs2", "dvs", "daos", "fuse.dfuse", "quobyte", "fuse.quobyte", "afs", "cifs", "smb3", "9p", "virtiofs")
)  # fmt: skip
"""Types of file systems that several machines mount."""


@dataclass(frozen=True)
class Network:
    """A network interface with an IPv4 address. ``speed_mbit``: Mbit/s, 0 if the driver does not report it."""

    name: str
    address: str
    up: bool
    speed_mbit: int

    def __str__(self) -> str:
        speed = f", {self.speed_mbit / 1000:g} Gbit/s" if self.speed_mbit else ""
        return f"{self.name} ({self.address}, {'up' if self.up else 'down'}{speed})"


@dataclass(frozen=True)
class Disk:
    """A folder in which this user can write.

    Attributes:
        name: where the name comes from: ``$SCRATCH``, or ``this checkout``.
        kind: type of its file system; empty if unknown.
        free: bytes.
    """

    name: str
    path: Path
    kind: str
    free: int

    @property
    def shared(self) -> bool:
        """Whether the file system is of a type that several machines mount."""
        return self.kind in SHARED

    @property
    def title(self) -> str:
        """Name, folder, type and free space."""
        return f"{self.name}, {self}"

    def __str__(self) -> str:
        return f"{self.path} ({self.kind or 'unknown file system'}, {storage.size(self.free)} free)"


@dataclass(frozen=True)
class Machine:
    """What this machine has. ``unknown``: a sentence for each source that failed."""

    host: str
    hardware: Hardware | None
    networks: tuple[Network, ...]
    disks: tuple[Disk, ...]
    checkout: Disk
    modules: tuple[str, ...]
    unknown: tuple[str, ...] = ()


def find(env: Mapping[str, str] = os.environ) -> Machine:
    """Return what this machine has."""
    found, unknown = None, []
    try:
        found = hardware.probe()
    except (ServemarkError, OSError) as error:
        unknown.append(f"Hardware: {error.what if isinstance(error, ServemarkError) else error}")
    return Machine(
        host=socket.gethostname(),
        hardware=found,
        networks=networks(),
        disks=disks(env),
        checkout=_disk("this checkout", Path.cwd()),
        modules=tuple(name for name in env.get("LOADEDMODULES", "").split(":") if name),
        unknown=tuple(unknown),
    )


def networks() -> tuple[Network, ...]:
    """Return the interfaces with an IPv4 address, without loopback: up before down, then the fastest first."""
    stats = psutil.net_if_stats()
    found = [
        Network(one.name, one.address, state.isup, state.speed)
        for one in hardware.interfaces()
        if (state := stats.get(one.name)) and not one.address.startswith("127.")
    ]
    return tuple(sorted(found, key=lambda network: (not network.up, -network.speed_mbit, network.name)))


def disks(env: Mapping[str, str]) -> tuple[Disk, ...]:
    """Return the folders that :data:`PLACES` name and in which this user can write: shared file systems first, each folder once."""
    named = {name: Path(env[name]) for name in PLACES if env.get(name, "").startswith("/")}
    usable = {path.resolve(): name for name, path in reversed(named.items()) if path.is_dir() and os.access(path, os.W_OK | os.X_OK)}
    found = [_disk(f"${name}", named[name]) for name in reversed(usable.values())]
    return tuple(sorted(found, key=lambda disk: not disk.shared))


def _disk(name: str, path: Path) -> Disk:
    mount = str(storage.mount_point(path))
    kinds = [part.fstype for part in psutil.disk_partitions(all=True) if part.mountpoint == mount]
    try:
        free = shutil.disk_usage(path).free
    except OSError:
        free = 0
    return Disk(name, path, kinds[-1] if kinds else "", free)
