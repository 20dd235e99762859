"""Ask Slurm about partitions and their nodes."""

from __future__ import annotations

import re
from collections import Counter

from snakemake_executor_plugin_slurm_guarded import commands
from snakemake_executor_plugin_slurm_guarded.commands import CommandFailed
from snakemake_executor_plugin_slurm_guarded.queries import minutes

# Words of sinfo for nodes that run a job or can take one. All others, and a `*` (does not respond), mean that the node is out.
_IN_SERVICE = frozenset(["idle", "allocated", "mixed", "completing", "planned"])


def has_gpus(partition: str | None) -> bool:
    """Return whether Slurm lists a node with GPUs in a partition (None: in any)."""
    return "gpu" in _sinfo("%G", partition)


def nodes_out(partition: str | None) -> str | None:
    """Return the nodes of a partition (None: of any) that take no job now, with sinfo's states: ``2 drained, 1 unknown*``.

    Empty if all nodes are in service. None if sinfo fails or its output is not readable.
    """
    try:
        said = _sinfo("%D %T", partition)
    except CommandFailed:
        return None
    rows = [words for line in said.splitlines() if len(words := line.split()) == 2 and words[0].isdecimal()]
    if said.strip() and not rows:
        return None
    found: Counter[str] = Counter()
    for number, state in rows:
        if "*" in state or re.sub(r"\W", "", state.lower()) not in _IN_SERVICE:
            found[state] += int(number)
    return ", ".join(f"{number} {state}" for state, number in found.items())


def _sinfo(fields: str, partition: str | None) -> str:
    named = [f"--partition={partition}"] if partition else []
    return commands.run(["sinfo", "--all", "--noheader", f"--format={fields}", *named])


def partition_limit(partition: str | None) -> float | None:
    """Return the longest time limit of a partition, minutes (None: of the default one; of several, ``a,b``, the shortest of theirs).

    None when there is no limit or Slurm does not state it.
    """
    limits = []
    wanted = partition.split(",") if partition else None
    for line in commands.run(["scontrol", "--all", "--oneliner", "show", "partition"]).splitlines():
        fields = dict(word.split("=", 1) for word in line.split() if "=" in word)
        if fields.get("PartitionName") in wanted if wanted else fields.get("Default") == "YES":
            limits.append(minutes(fields.get("MaxTime", "")))
    return min((limit for limit in limits if limit is not None), default=None)
