"""Limits of the QOS, the association and the partition that one job exceeds by itself: Slurm may queue such a job and never start it.

Sources: slurm.conf(5), sacctmgr(1) and Slurm's page resource_limits, 22.05 to 26.05. A limit of the partition's QOS comes first, then the
job's QOS, then the association (OverPartQOS exchanges the first two); the first one that is set counts.
"""

import getpass
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from snakemake_executor_plugin_slurm_guarded import commands, queries
from snakemake_executor_plugin_slurm_guarded.commands import CommandFailed
from snakemake_executor_plugin_slurm_guarded.errors import TERMS
from snakemake_executor_plugin_slurm_guarded.request import Request

Fields = Mapping[str, str]


class Limit(NamedTuple):
    """One row of the table. A job alone exceeds the limit if it requests more (for ``least``: less) of one resource.

    ``qos`` and ``assoc`` are Slurm's reasons for a waiting job, with ``{}`` for the resource's word; empty where there is no such limit.
    """

    field: str  # of sacctmgr
    qos: str
    assoc: str
    per_node: bool = False
    least: bool = False


TIME = "MaxWall"
SUBMIT = ("MaxSubmitPU", "MaxSubmitPA", "GrpSubmit", "MaxSubmit")
"""Fields for the number of jobs in the queue: of a QOS for each user, for each account and together, and of an association."""
TABLE = (
    Limit("MaxTRES", "QOSMax{}PerJob", "AssocMax{}PerJob"),
    Limit("MaxTRESPerNode", "QOSMax{}PerNode", "AssocMax{}PerNode", per_node=True),
    Limit("MaxTRESPU", "QOSMax{}PerUser", ""),
    Limit("MaxTRESPA", "Max{}PerAccount", ""),
    Limit("GrpTRES", "QOSGrp{}", "AssocGrp{}"),
    Limit("MinTRES", "QOSMin{}", "", least=True),
)
# Resource -> its word in Slurm's reasons, and the key of TERMS to change.
_WORDS = {"node": ("Node", "nodes"), "gres/gpu": ("GRES", "gres"), "cpu": ("Cpu", "nodes")}
# Slurm's names that do not follow the patterns of the table.
_NAMES = {
    **{f"{a}Max{r}PerJob": f"{a}Max{r}PerJobLimit" for a in ("QOS", "Assoc") for r in ("Node", "Cpu")},
    **{f"{a}Grp{r}": f"{a}Grp{r}Limit" for a in ("QOS", "Assoc") for r in ("Node", "Cpu")},
    **{f"QOSMax{r}PerUser": f"QOSMax{r}PerUserLimit" for r in ("Node", "Cpu")},
    "QOSMinCpu": "QOSMinCpuNotSatisfied",
}
_QOS_FIELDS = ("Name", "Flags", TIME, "MaxSubmitPU", "MaxSubmitPA", "GrpSubmit", *(row.field for row in TABLE if row.qos))
_ASSOC_FIELDS = ("DefaultAccount", "Account", "Partition", "DefaultQOS", TIME, "MaxSubmit", "GrpSubmit",
                 *(row.field for row in TABLE if row.assoc))  # fmt: skip


class Site(NamedTuple):
    """What Slurm reports about limits. Empty without accounting, without enforced limits, or without the right to read them."""

    partitions: Sequence[Fields] = ()
    qos: Mapping[str, Fields] = {}
    associations: Sequence[Fields] = ()


def read(ask: Callable[[Sequence[str]], str] = commands.run) -> Site:
    """Query Slurm's limits. A query that fails leaves its limits out: Slurm itself still checks them."""

    def lines(*argv: str) -> list[str]:
        try:
            return ask(argv).splitlines()
        except CommandFailed:
            return []

    partitions = [_fields(line) for line in lines("scontrol", "--all", "--oneliner", "show", "partition")]
    config = "\n".join(lines("scontrol", "show", "config"))
    enforced = re.search(r"^AccountingStorageEnforce\s*=.*\b(limits|safe|all)\b", config, re.MULTILINE)
    if not enforced:
        return Site(partitions)
    shown = ["sacctmgr", "--noheader", "--parsable2", "show"]
    qos = _rows(lines(*shown, "qos", f"format={','.join(_QOS_FIELDS)}"), _QOS_FIELDS)
    wanted = ["user", getpass.getuser(), "withassoc", f"format={','.join(_ASSOC_FIELDS)}"]
    return Site(partitions, {row["Name"]: row for row in qos}, _rows(lines(*shown, *wanted), _ASSOC_FIELDS))


def _fields(line: str) -> Fields:
    return dict(word.split("=", 1) for word in line.split() if "=" in word)


def _rows(lines: Iterable[str], names: Sequence[str]) -> list[Fields]:
    rows = [line.split("|") for line in lines]
    return [dict(zip(names, row, strict=True)) for row in rows if len(row) == len(names)]


def problems(request: Request, site: Site) -> list[str]:
    """Return one sentence for each limit that this job alone exceeds: the numbers, Slurm's reason, the keys to change."""
    partitions = _partitions(request, site)
    # Of several partitions, Slurm takes one that fits.
    each = [list(_problems(request, site, partition)) for partition in partitions or [{}]]
    return min(each, key=len)


def notes(requests: Sequence[Request], site: Site) -> list[str]:
    """Return what a user should know before jobs are submitted, and what refuses none of them."""
    return list(dict.fromkeys(note for request in requests for note in _notes(request, site, len(requests))))


def _notes(request: Request, site: Site, jobs: int) -> Iterator[str]:
    for partition in _partitions(request, site):
        if request.exclusive and partition.get("OverSubscribe", "").startswith("FORCE"):
            yield (
                f"Partition {partition['PartitionName']} shares its nodes in any case (OverSubscribe=FORCE), so Slurm ignores --exclusive. "
                f"Change {TERMS['partition']}, or set {TERMS['exclusive']} to false."
            )
    for whose, fields in _sources(request, site, {}):
        for field in SUBMIT:
            if (most := fields.get(field, "")).isdigit() and int(most) < jobs:
                reason = "AssocMaxSubmitJobLimit" if whose.startswith("account") else "QOSMaxSubmitJobPerUserLimit"
                yield (
                    f"The {whose} allows {most} job(s) in the queue at a time ({field}; Slurm's reason: {reason}). If sbatch refuses one, "
                    f"add --jobs {most} to the command, or change {TERMS['qos']}."
                )


def _partitions(request: Request, site: Site) -> list[Fields]:
    wanted = request.partition.split(",") if request.partition else None
    return [p for p in site.partitions if (p.get("PartitionName") in wanted if wanted else p.get("Default") == "YES")]


def _sources(request: Request, site: Site, partition: Fields) -> list[tuple[str, Fields]]:
    """Return the sources of limits in Slurm's order, each with a name."""
    mine = [row for row in site.associations if row["Account"] == (request.account or row["DefaultAccount"])]
    there = [row for row in mine if row["Partition"] in ("", *(request.partition or partition.get("PartitionName", "")).split(","))]
    association = max(there, key=lambda row: bool(row["Partition"]), default=None)
    own = request.qos or (association["DefaultQOS"] if association else "")
    names = [queries.stated(partition.get("QoS", "")), own]
    if "OverPartQOS" in site.qos.get(own, {}).get("Flags", ""):
        names.reverse()
    found = [(f"QOS {name}", site.qos[name]) for name in dict.fromkeys(names) if name in site.qos]
    return [*found, (f"account {association['Account']}", association)] if association else found


def _problems(request: Request, site: Site, partition: Fields) -> Iterator[str]:
    sources, asked, name = _sources(request, site, partition), _asked(request), f"partition {partition.get('PartitionName', '')}"
    # Flags with which a QOS overrides limits of the partition.
    flags = ",".join(fields.get("Flags", "") for _, fields in sources)
    limit = queries.minutes(partition.get("MaxTime", ""))
    if request.minutes and limit is not None and request.minutes > limit and "PartitionTimeLimit" not in flags:
        yield _sentence(f"{request.minutes} minutes", name, f"{limit:g}", "MaxTime", "PartitionTimeLimit", "time", "partition")
    most = partition.get("MaxNodes", "")
    if most.isdigit() and asked["node"] > int(most) and "PartitionMaxNodes" not in flags:
        yield _sentence(f"{asked['node']} nodes", name, most, "MaxNodes", "PartitionNodeLimit", "nodes", "partition")
    whose, text = _first(sources, TIME)
    limit = queries.minutes(text)
    if request.minutes and limit is not None and request.minutes > limit:
        reason = f"{'Assoc' if whose.startswith('account') else 'QOS'}MaxWallDurationPerJobLimit"
        yield _sentence(f"{request.minutes} minutes", whose, f"{limit:g}", TIME, reason, "time", _other(whose))
    for row in TABLE:
        for resource, (word, key) in _WORDS.items():
            whose, text = _first(sources, row.field, resource)
            has = asked.get(resource)
            if has is None or not text.isdigit():
                continue
            amount = has // request.nodes if row.per_node and resource != "node" else has
            if (amount < int(text)) if row.least else (amount > int(text)):
                pattern = (row.assoc if whose.startswith("account") else row.qos).format(word)
                what = f"{amount} x {resource}{' on each node' if row.per_node else ''}"
                yield _sentence(what, whose, text, row.field, _NAMES.get(pattern, pattern), key, _other(whose))


def _asked(request: Request) -> dict[str, int]:
    """Return what a job requests of each resource. Cores are unknown if Slurm chooses them or gives whole nodes."""
    asked = {"node": request.nodes + (request.second is not None)}
    if gpus := re.search(r"\bgpu(?::[^:,]+)?:(\d+)", request.gres or ""):
        asked["gres/gpu"] = request.nodes * int(gpus[1])
    if request.cpus and not request.exclusive:
        asked["cpu"] = request.nodes * request.cpus
    return asked


def _first(sources: Iterable[tuple[str, Fields]], field: str, resource: str | None = None) -> tuple[str, str]:
    """Return the first source that sets a limit, and the limit; empty texts without one."""
    for whose, fields in sources:
        text = fields.get(field, "")
        if resource is not None:
            text = dict(part.split("=", 1) for part in text.split(",") if "=" in part).get(resource, "")
        if text:
            return whose, text
    return "", ""


def _other(whose: str) -> str:
    return "account" if whose.startswith("account") else "qos"


def _sentence(asked: str, whose: str, limit: str, field: str, reason: str, *keys: str) -> str:
    changed = " or ".join(dict.fromkeys(TERMS[key] for key in keys))
    return f"It requests {asked}; {whose} has {field}={limit}. Slurm would never start it (reason {reason}). Change {changed}."
