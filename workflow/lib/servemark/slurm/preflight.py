"""Before anything is submitted: Slurm is here, answers, and would take each request."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Sequence

from servemark.errors import ConfigError
from servemark.slurm import commands, listings
from servemark.slurm.commands import CommandFailed, Trouble
from servemark.slurm.request import Request

TOOLS = ("sbatch", "squeue", "scancel", "scontrol", "srun")
# Restarting slurmctld takes seconds to a minute, and happens on every change of a cluster's configuration.
PATIENCE_S = 60.0
_PAUSE_S = 3.0

_TIME = ("max_minutes", "minutes_to_start", "minutes_per_point", "small_jobs.minutes")
_GPUS = ("gpus_per_node", "gpu_type")
# What Slurm says (slurm/src/common/slurm_errno.c) and which keys of the cluster file, or of the experiment, it is about; the first that
# fits counts.
_ABOUT = (
    (r"violates accounting/qos policy", ("qos", "account", *_TIME, "topology.nodes")),
    (r"invalid account|account/partition combination|user'?s? .*account", ("account", "partition")),
    (r"invalid qos|requested qos", ("qos",)),
    (r"partition.*(invalid|not available|down|inactive|drain)|invalid partition|required partition", ("partition",)),
    (r"generic resource|gres", _GPUS),
    (r"feature", ("constraint",)),
    (r"time limit|requested time|timelimit", _TIME),
    (r"node count|more nodes|more processors|too many", ("topology.nodes",)),
    (r"node configuration is not available", ("topology.nodes", *_GPUS, "constraint")),
    (r"unrecognized option|invalid option|ambiguous|invalid --|requires an argument", ("extra",)),
)
# What `sbatch --test-only` says of nodes that are out as well as of those that do not exist (slurmctld, job_start_data).
_NO_NODES = r"node configuration is not available|down, drained or reserved"
# sinfo's words for nodes that get no job now.
_OUT = "down,drain,fail,maint,no_respond"


def _nodes_out(partition: str | None) -> int:
    """Nodes of a partition (None: of any) that no job can have now; 0 also where that cannot be told."""
    named = [f"--partition={partition}"] if partition else []
    try:
        said = commands.run(["sinfo", "--all", "--noheader", f"--states={_OUT}", "--format=%D", *named])
    except CommandFailed:
        return 0
    return sum(int(word) for word in said.split() if word.isdecimal())


def keys_for(said: str) -> tuple[str, ...]:
    """The keys of cluster file and experiment that a refusal in Slurm's words is about; empty when it cannot be told."""
    for pattern, keys in _ABOUT:
        if re.search(pattern, said, re.IGNORECASE):
            return keys
    return ()


def check(requests: Sequence[Request], say: Callable[[str], None], *, patience_s: float = PATIENCE_S) -> None:
    """Refuse what Slurm would refuse.

    Args:
        requests: one for each deployment; equal ones are asked about once.
        say: gets a message when the controller is waited for.

    Raises:
        ConfigError: Slurm's commands are missing, its controller does not answer, or it refuses requests (all are named).
    """
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        raise ConfigError(
            f"Slurm's commands are not here: {', '.join(missing)}.",
            do="Run on the cluster's login node (load its Slurm module if it has one), or take --profile profiles/local.",
            reason="slurm_missing",
        )
    _await_controller(say, patience_s)
    refused: dict[tuple[str, ...], str] = {}
    names: dict[tuple[str, ...], list[str]] = {}
    for request in requests:
        flags = _flags(request)
        names.setdefault(flags, []).append(request.name)
        if len(names[flags]) > 1 or not (said := _refusal(flags)):
            continue
        if re.search(_NO_NODES, said, re.IGNORECASE) and (out := _nodes_out(request.partition)):
            say(
                f"{request.name}: Slurm could not start this job as its nodes are now ({said}), and {out} node(s) are down or drained. It "
                "is submitted and waits for them; a request that no node fits is refused then. `sinfo -R` says why they are out."
            )
            continue
        refused[flags] = said
    if refused:
        raise ConfigError(
            "\n".join(_told(", ".join(names[flags]), flags, said) for flags, said in refused.items()),
            do="Mend these keys of the cluster file (topology.nodes: of the experiment); `sinfo` and `sacctmgr show assoc user=$USER` say "
            "what there is.",
            reason="slurm_refused",
        )


def _flags(request: Request) -> tuple[str, ...]:
    try:
        return tuple(request.flags())
    except ValueError as error:
        raise ConfigError(
            f"{request.name}: the extra options of sbatch are no command line ({error}): {request.extra}"
        ) from error


def _told(name: str, flags: tuple[str, ...], said: str) -> str:
    keys = keys_for(said)
    about = f" (key{'s' if len(keys) > 1 else ''} {', '.join(keys)})" if keys else ""
    return f"{name}: Slurm refuses the request{about}: {said}\n  sbatch {' '.join(flags)}"


def _await_controller(say: Callable[[str], None], patience_s: float) -> None:
    deadline, told = time.monotonic() + patience_s, False
    while True:
        try:
            # Not `scontrol ping`: it says that the controller is up while it does not yet answer questions about jobs.
            commands.run(["squeue", "--noheader", f"--user={os.getuid()}"])
            return
        except CommandFailed as error:
            # An answer that is no is an answer: the requests will tell.
            if error.trouble is Trouble.REFUSED:
                return
            if time.monotonic() >= deadline:
                raise ConfigError(
                    f"Slurm's controller did not answer for {patience_s:.0f} s: {error}",
                    do="Try again when `squeue` answers here. Is this no login node, go to one, or export SLURM_CONF. Nothing was started.",
                    reason="slurm_unreachable",
                ) from error
            if not told:
                say(f"Slurm's controller does not answer ({error}); waiting up to {patience_s:.0f} s for it.")
                told = True
        time.sleep(_PAUSE_S)


def _refusal(flags: Sequence[str]) -> str | None:
    """Slurm's own words when it would refuse these flags."""
    argv = ["sbatch", "--test-only", *flags]
    try:
        commands.run(argv, stdin="#!/bin/sh\ntrue\n", timeout_s=commands.SUBMIT_S, env=os.environ)
    except CommandFailed as error:
        if error.trouble is Trouble.REFUSED:
            return " ".join(
                line.removeprefix("sbatch: error: ").removeprefix("sbatch: ") for line in error.said.splitlines()
            )
        raise ConfigError(
            f"Slurm does not answer: {error}", do="Try again when `squeue` answers.", reason="slurm_unreachable"
        ) from error
    return None


def has_gpus(partition: str | None) -> bool:
    """Return whether Slurm lists a node with GPUs in a partition (None: in any).

    Raises:
        CommandFailed: no answer.
    """
    named = [f"--partition={partition}"] if partition else []
    return "gpu" in commands.run(["sinfo", "--all", "--noheader", "--format=%G", *named])


def partition_limit(partition: str | None) -> float | None:
    """The longest time limit of a partition (None: the default one; of several, ``a,b``, the shortest of theirs), in minutes; None when
    there is none or it cannot be told.

    Raises:
        CommandFailed: no answer.
    """
    argv = ["scontrol", "--all", "--oneliner", "show", "partition"]
    text = commands.run(argv)
    limits = [limit_of(text, name) for name in (partition.split(",") if partition else [None])]
    return min((limit for limit in limits if limit is not None), default=None)


def limit_of(text: str, partition: str | None) -> float | None:
    """Read ``scontrol -o show partition``: MaxTime in minutes of the named or of the default partition."""
    for line in text.splitlines():
        fields = dict(word.split("=", 1) for word in line.split() if "=" in word)
        if fields.get("PartitionName") == partition or (partition is None and fields.get("Default") == "YES"):
            seconds = listings.duration_s(fields.get("MaxTime", ""))
            return None if seconds is None else seconds / 60
    return None
