"""What a cluster file requests of Slurm: partition, account, share of a node, network, modules and cache, from the facts found."""

import getpass
import grp
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from servemark.config.cluster import INTERFACE_PATTERN, MODULE_PATTERN, WORD_PATTERN
from servemark.init.machine import Disk, Machine, Network
from servemark.init.slurm import Account, NodeKind, Partition, Slurm
from servemark.init.terminal import Asker

SHORTEST_MIN = 30
"""Minutes. A partition with a lower limit is for tests: a server of a large model alone takes 10 to 20 minutes to start."""
SPACE = 16 * 2**30
"""Bytes that the cache needs at least: the largest lock file (``environments/lockfiles.py``)."""
OWN = re.compile(r"^(slurm|python|anaconda|miniconda|miniforge|conda|mamba|jupyter)", re.IGNORECASE)
"""Modules that the nodes do not need: Slurm has its own there, and servemark's environments hold their own Python."""


@dataclass(frozen=True)
class Site:
    """The choices for one cluster file. Attributes are None or empty where nothing is known.

    Attributes:
        partition: the chosen one; ``partitions`` are the others that this user may use.
        account: the chosen one; ``accounts`` are the names of the others.
        kind: what one node of the partition has.
        kinds: the other kinds of nodes with GPUs in the partition.
        network: of a node, if this machine is one.
        cache: a folder for the key ``cache``; ``disks`` are the other folders that were found.
    """

    name: str
    partition: Partition | None
    partitions: tuple[Partition, ...]
    account: Account | None
    accounts: tuple[str, ...]
    kind: NodeKind | None
    kinds: tuple[NodeKind, ...]
    network: Network | None
    modules: tuple[str, ...]
    cache: Path | None
    cache_disk: Disk | None
    disks: tuple[Disk, ...]

    @property
    def gpus(self) -> int:
        """GPUs of one node."""
        return self.kind.gpus if self.kind else 0

    @property
    def max_minutes(self) -> int | None:
        """The partition's time limit, minutes."""
        return int(self.partition.limit_min) if self.partition and self.partition.limit_min and self.partition.limit_min >= 1 else None


def choose(name: str, slurm: Slurm, machine: Machine, ask: Asker) -> Site:
    """Return the choices for the cluster file ``name``."""
    accounts = tuple(account for account in slurm.accounts if re.fullmatch(WORD_PATTERN, account.name))
    offered = usable(slurm.partitions, _groups(), accounts)
    partition = ask.choose("Which partition?", [(one, _in_words(one)) for one in offered]) if offered else None
    fitting = _accounts(accounts, partition)
    account = ask.choose("Which account?", [(one, one.name) for one in fitting]) if fitting else None
    with_space = [disk for disk in machine.disks if disk.free >= SPACE]
    places: list[tuple[Disk | None, str]] = [(disk, disk.title) for disk in with_space]
    places.append((None, f"results/cache in this checkout: {machine.checkout}"))
    disk = ask.choose("Where to keep environments, downloaded models and compiled code? Every node must have this folder.", places)
    here = partition is not None and {machine.host, machine.host.partition(".")[0]} & partition.nodes
    networks = [one for one in machine.networks if one.up and re.fullmatch(INTERFACE_PATTERN, one.name)]
    kind = partition.kind if partition else None
    return Site(
        name=name,
        partition=partition,
        partitions=tuple(one for one in offered if one is not partition),
        account=account,
        accounts=tuple(dict.fromkeys(one.name for one in fitting if account and one.name != account.name)),
        kind=kind,
        kinds=tuple(one for one in (partition.kinds if partition else ()) if one.gpus and one != kind),
        network=networks[0] if here and networks else None,
        modules=tuple(one for one in machine.modules if re.fullmatch(MODULE_PATTERN, one) and not OWN.match(one)),
        cache=_own_folder(disk.path) if disk else None,
        cache_disk=disk,
        disks=tuple(one for one in machine.disks if one is not disk),
    )


def usable(partitions: Iterable[Partition], groups: Iterable[str], accounts: Iterable[Account]) -> list[Partition]:
    """Return the partitions that this user may use, the best first: with GPUs, with a usual time limit, the default one, the largest."""
    mine, names = set(groups), {account.name for account in accounts}
    root = os.geteuid() == 0

    def allowed(one: Partition) -> bool:
        by_group = root or (not one.root_only and (not one.groups or bool(mine & set(one.groups))))
        # Without a list of accounts, Slurm itself decides.
        by_account = not names or ((not one.accounts or bool(names & set(one.accounts))) and not names <= set(one.denied))
        return one.up and by_group and by_account and re.fullmatch(WORD_PATTERN, one.name) is not None

    def order(one: Partition) -> tuple[bool, bool, bool, int, str]:
        short = one.limit_min is not None and one.limit_min < SHORTEST_MIN
        return not one.gpus, short, not one.default, -sum(one.kinds.values()), one.name

    return sorted(filter(allowed, partitions), key=order)


def _accounts(accounts: Iterable[Account], partition: Partition | None) -> list[Account]:
    """Return the accounts that may use the partition, the default one first."""
    if partition is None:
        return list(accounts)
    found = [one for one in accounts if one.partition in ("", partition.name) and one.name not in partition.denied]
    return [one for one in found if not partition.accounts or one.name in partition.accounts]


def _in_words(partition: Partition) -> str:
    kind, limit = partition.kind, partition.limit_min
    parts = [f"{len(partition.nodes)} node(s)"]
    if kind:
        gpus = f"{kind.gpus} GPU(s){f' {kind.gpu_type}' if kind.gpu_type else ''}" if kind.gpus else "no GPU"
        parts.append(f"{gpus}, {kind.cpus} CPUs and {kind.memory_mib // 1024} GiB on each")
    parts.append(f"limit {limit:.0f} minutes" if limit else "no time limit")
    return f"{partition.name}: {', '.join(parts)}{', the default one' if partition.default else ''}"


def _own_folder(folder: Path) -> Path:
    """Return a folder for the cache below ``folder``; with this user's name in between if the folder belongs to others too."""
    user = getpass.getuser()
    mine = user in folder.parts or folder.stat().st_uid == os.getuid()
    return folder / "servemark-cache" if mine else folder / user / "servemark-cache"


def _groups() -> set[str]:
    names = set()
    for number in os.getgroups():
        try:
            names.add(grp.getgrgid(number).gr_name)
        except KeyError:
            continue
    return names
