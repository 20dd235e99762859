"""Facts about this cluster's Slurm: partitions, their nodes, accounts. Each source may fail without the others."""

import getpass
import re
import shutil
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from snakemake_executor_plugin_slurm_guarded import commands
from snakemake_executor_plugin_slurm_guarded.commands import CommandFailed, Trouble
from snakemake_executor_plugin_slurm_guarded.queries import minutes, stated

NODES = ["sinfo", "--all", "--noheader", "--Node", "--format=%R|%N|%G|%c|%m"]


@dataclass(frozen=True)
class NodeKind:
    """What one node has. ``gpu_type``: Slurm's name, None where it has none; ``memory_mib``: MiB."""

    gpus: int
    gpu_type: str | None
    cpus: int
    memory_mib: int

    def __str__(self) -> str:
        return f"{self.gpus} x {self.gpu_type or 'GPU'}"


@dataclass(frozen=True)
class Partition:
    """A partition as ``scontrol show partition`` lists it; times in minutes, None without a limit.

    Attributes:
        groups: Unix groups that may use it; empty: all.
        accounts: Slurm accounts that may use it; empty: all.
        denied: Slurm accounts that may not use it.
        nodes: names of its nodes.
        kinds: number of nodes of each kind.
    """

    name: str
    default: bool = False
    up: bool = True
    limit_min: float | None = None
    root_only: bool = False
    groups: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()
    denied: tuple[str, ...] = ()
    nodes: frozenset[str] = frozenset()
    kinds: Counter[NodeKind] = field(default_factory=Counter)

    @property
    def kind(self) -> NodeKind | None:
        """The most frequent kind of node with the most GPUs; None if Slurm lists no nodes."""
        return max(self.kinds, key=lambda kind: (kind.gpus > 0, self.kinds[kind], kind.gpus), default=None)

    @property
    def gpus(self) -> int:
        """GPUs of a node of :attr:`kind`."""
        return self.kind.gpus if self.kind else 0


@dataclass(frozen=True)
class Account:
    """An account of this user. ``partition``: the only one in which it counts, empty for all; ``qos``: allowed QOS."""

    name: str
    partition: str = ""
    qos: tuple[str, ...] = ()
    default: bool = False


@dataclass(frozen=True)
class Slurm:
    """What Slurm reports. ``unknown``: a sentence for each source that failed; ``responds``: whether slurmctld does."""

    cluster: str | None
    partitions: tuple[Partition, ...]
    accounts: tuple[Account, ...]
    unknown: tuple[str, ...] = ()
    responds: bool = True


def find() -> Slurm | None:
    """Return what Slurm reports; None if its command sbatch is not here. After a query without a response, make no other one."""
    if shutil.which("sbatch") is None:
        return None
    unknown: list[str] = []
    silent = False

    def ask(what: str, *argv: str) -> str:
        nonlocal silent
        if silent:
            return ""
        try:
            return commands.run(argv)
        except CommandFailed as error:
            silent = error.trouble is Trouble.UNREACHABLE and argv[0] != "sacctmgr"
            unknown.append(f"{what}: `{' '.join(argv[:3])}` failed: {(error.said or error.trouble.value).splitlines()[-1]}")
            return ""

    name = re.search(r"^ClusterName\s*=\s*(\S+)", ask("Slurm", "scontrol", "show", "config"), re.MULTILINE)
    described = ask("Partitions", "scontrol", "--all", "--oneliner", "show", "partition")
    partitions = parse_partitions(described, ask("Nodes", *NODES))
    user = getpass.getuser()
    wanted = "format=DefaultAccount,Account,Partition,QOS"
    accounts = parse_sacctmgr(ask("Accounts", "sacctmgr", "--noheader", "--parsable2", "show", "user", user, "withassoc", wanted))
    if not accounts:
        said = ask("Accounts", "scontrol", "--oneliner", "show", "assoc_mgr", f"users={user}", "flags=users,assoc")
        accounts = parse_assoc_mgr(said, user)
    return Slurm(name[1] if name else None, partitions, accounts, tuple(unknown), responds=not silent)


def parse_partitions(described: str, nodes: str) -> tuple[Partition, ...]:
    """Read ``scontrol --oneliner show partition`` and the output of :data:`NODES`."""
    names: dict[str, set[str]] = {}
    kinds: dict[str, Counter[NodeKind]] = {}
    for line in nodes.splitlines():
        if len(cells := line.strip().split("|")) == 5:
            partition, node, gres, cpus, memory = cells
            gpus, gpu_type = parse_gres(gres)
            names.setdefault(partition, set()).add(node)
            kinds.setdefault(partition, Counter())[NodeKind(gpus, gpu_type, _number(cpus), _number(memory))] += 1
    found = []
    for line in described.splitlines():
        fields = dict(word.split("=", 1) for word in line.split() if "=" in word)
        if name := fields.get("PartitionName"):
            found.append(
                Partition(
                    name=name,
                    default=fields.get("Default") == "YES",
                    up=fields.get("State", "UP") == "UP",
                    limit_min=minutes(fields.get("MaxTime", "")),
                    root_only=fields.get("RootOnly") == "YES",
                    groups=_listed(fields.get("AllowGroups")),
                    accounts=_listed(fields.get("AllowAccounts")),
                    denied=_listed(fields.get("DenyAccounts")),
                    nodes=frozenset(names.get(name, ())),
                    kinds=kinds.get(name, Counter()),
                )
            )
    return tuple(found)


def parse_gres(text: str) -> tuple[int, str | None]:
    """Return number and type of the GPUs in sinfo's ``%G``: ``gpu:h100:4(S:0-1)`` -> 4, h100. Of several types, the most frequent."""
    counts: Counter[str] = Counter()
    for kind, number in re.findall(r"(?:^|,)gpu:(?:([^:,(]+):)?(?:no_consume:)?(\d+)", text):
        counts[kind] += int(number)
    kind, number = max(counts.items(), key=lambda item: item[1], default=("", 0))
    return number, kind or None


def parse_sacctmgr(text: str) -> tuple[Account, ...]:
    """Read ``sacctmgr --parsable2 show user NAME withassoc format=DefaultAccount,Account,Partition,QOS``."""
    rows = [cells for line in text.splitlines() if len(cells := line.strip().split("|")) == 4 and cells[1]]
    return _in_order(Account(name, partition, _listed(qos), name == default) for default, name, partition, qos in rows)


def parse_assoc_mgr(text: str, user: str) -> tuple[Account, ...]:
    """Read ``scontrol --oneliner show assoc_mgr flags=users,assoc``, which needs no right to read accounting."""
    default = re.findall(rf"^UserName={re.escape(user)}\(\d+\) DefAccount=(\S+)", text, re.MULTILINE)
    rows = re.findall(rf"\bAccount=(\S+) UserName={re.escape(user)}\(\d+\) Partition=(\S*)", text)
    return _in_order(Account(name, partition, (), name in default) for name, partition in rows)


def _in_order(accounts: Iterable[Account]) -> tuple[Account, ...]:
    return tuple(sorted(set(accounts), key=lambda account: (not account.default, account.name, account.partition)))


def _listed(text: str | None) -> tuple[str, ...]:
    return tuple(name for name in stated(text or "").split(",") if name and name.upper() not in ("ALL", "N/A"))


def _number(text: str) -> int:
    """Return the number at the beginning: sinfo prints ``64000+`` where nodes differ."""
    found = re.match(r"\d+", text)
    return int(found[0]) if found else 0
