"""Ask Slurm about partitions and their nodes."""

from __future__ import annotations

import re

from snakemake_executor_plugin_slurm_guarded import commands
from snakemake_executor_plugin_slurm_guarded.commands import CommandFailed
from snakemake_executor_plugin_slurm_guarded.queries import minutes


def has_gpus(partition: str | None) -> bool:
    """Return whether Slurm lists a node with GPUs in a partition (None: in any).

    Raises:
        CommandFailed: no answer.
    """
    return "gpu" in _sinfo("%G", partition)


# Words of sinfo for nodes that run a job or can take one. All others, and a `*` (does not respond), mean that the node is out.
_IN_SERVICE = frozenset(["idle", "allocated", "mixed", "completing", "planned"])


def nodes_out(partition: str | None) -> str | None:
    """Return the nodes of a partition (None: of any) that take no job now, with sinfo's states.

    Returns:
        For example ``2 drained, 1 unknown*``. Empty if all nodes are in service. None if sinfo fails or its output is not readable.
    """
    try:
        said = _sinfo("%D %T", partition)
    except CommandFailed:
        return None
    rows = [words for line in said.splitlines() if len(words := line.split()) == 2 and words[0].isdecimal()]
    if said.strip() and not rows:
        return None
    found: dict[str, int] = {}
    for number, state in rows:
        if "*" in state or re.sub(r"\W", "", state.lower()) not in _IN_SERVICE:
            found[state] = found.get(state, 0) + int(number)
    return ", ".join(f"{number} {state}" for state, number in found.items())


def _sinfo(fields: str, partition: str | None) -> str:
    named = [f"--partition={partition}"] if partition else []
    return commands.run(["sinfo", "--all", "--noheader", f"--format={fields}", *named])


def partition_limit(partition: str | None) -> float | None:
    """Return the longest time limit of a partition (None: of the default one; of several, ``a,b``, the shortest of theirs).

    Returns:
        Minutes; None when there is no limit or Slurm does not state it.

    Raises:
        CommandFailed: no answer.
    """
    text = commands.run(["scontrol", "--all", "--oneliner", "show", "partition"])
    limits = [limit_of(text, name) for name in (partition.split(",") if partition else [None])]
    return min((limit for limit in limits if limit is not None), default=None)


def limit_of(text: str, partition: str | None) -> float | None:
    """Read ``scontrol -o show partition``: MaxTime in minutes of the named or of the default partition."""
    for line in text.splitlines():
        fields = dict(word.split("=", 1) for word in line.split() if "=" in word)
        if fields.get("PartitionName") == partition or (partition is None and fields.get("Default") == "YES"):
            return minutes(fields.get("MaxTime", ""))
    return None
