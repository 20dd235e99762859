"""Before anything is submitted: Slurm is here, answers, and would take each request."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

from servemark.errors import ConfigError
from servemark.machine.checkout import Checkout
from servemark.slurm import commands, journal, listings, submit
from servemark.slurm.commands import CommandFailed, Trouble
from servemark.slurm.request import Request

TOOLS = ("sbatch", "squeue", "scancel", "scontrol", "srun", "sinfo")
# Restarting slurmctld takes seconds to a minute, and happens on every change of a cluster's configuration.
PATIENCE_S = 60.0
_PAUSE_S = 3.0

_SAID = re.compile(r"^(sbatch: )?((error|fatal): )?((Batch job submission failed|allocation failure): )?")
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
# Refusals that end without a change of the request: what Slurm reports, and what to do about it. For all others the keys are wrong.
_PASSING = (
    (
        r"inactive or drain",
        "The partition takes no jobs now (`scontrol show partition`). Run the same command again when it is UP, or name another one.",
    ),
    (
        r"submit\w*limit",
        "The limit on jobs in the queue is reached. Run the same command again when other jobs have ended (`squeue --me`), or add --jobs "
        "NUMBER for fewer jobs at a time. `sacctmgr show qos` and `sacctmgr show assoc user=$USER` show the limits.",
    ),
)
_FIX = (
    "Fix these keys of the cluster file (topology.nodes: of the experiment). `sinfo` and `sacctmgr show assoc user=$USER` show what the "
    "cluster offers."
)
# `sbatch --test-only` prints this for nodes that are out as well as for nodes that do not exist (slurmctld, job_start_data).
_NO_NODES = r"node configuration is not available|down, drained or reserved"
# Longer than a submission and its cancellation take; an empty job that stays runs for no time.
_LATER = "--begin=now+120"
# Words of sinfo for nodes that run a job or can take one. All others, and a `*` (does not respond), mean that the node is out.
_IN_SERVICE = frozenset(["idle", "allocated", "mixed", "completing", "planned"])


def _nodes_out(partition: str | None) -> str | None:
    """Return the nodes of a partition (None: of any) that take no job now, with sinfo's states.

    Returns:
        For example ``2 drained, 1 unknown*``. Empty if all nodes are in service. None if sinfo fails or its output is not readable.
    """
    named = [f"--partition={partition}"] if partition else []
    try:
        said = commands.run(["sinfo", "--all", "--noheader", "--format=%D %T", *named])
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


def keys_for(said: str) -> tuple[str, ...]:
    """The keys of cluster file and experiment that a refusal in Slurm's words is about; empty when it cannot be told."""
    for pattern, keys in _ABOUT:
        if re.search(pattern, said, re.IGNORECASE):
            return keys
    return ()


def check(requests: Sequence[Request], say: Callable[[str], None], *, patience_s: float = PATIENCE_S) -> None:
    """Refuse what sbatch would refuse; print what it would queue although the job cannot start now.

    ``sbatch --test-only`` also refuses jobs that cannot start at this moment. So an empty job, cancelled at once, decides.

    Args:
        requests: one for each deployment; equal ones are asked about once.
        say: gets a message when the controller is waited for, and for a job that will wait in the queue.

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
        out = _nodes_out(request.partition)
        # With all nodes in service, sbatch may queue a job that fits none of them (EnforcePartLimits=NO): it would never start. If the
        # states of the nodes are unknown (None), the empty job decides.
        never = out == "" and re.search(_NO_NODES, said, re.IGNORECASE)
        if final := said if never else _refusal_of_empty(request):
            refused[flags] = final
            continue
        nodes = f" Nodes out of service: {out}; `sinfo -R` shows why." if out else ""
        say(
            f"{request.name}: Slurm accepts this job but cannot start it now. It reports: {said}.{nodes} The job will wait in the queue."
        )
    if refused:
        raise ConfigError(
            "\n".join(_told(", ".join(names[flags]), flags, said) for flags, said in refused.items()),
            do="\n".join(dict.fromkeys(map(remedy, refused.values()))),
            reason="slurm_refused",
        )


def remedy(said: str) -> str:
    """What to do about a refusal in Slurm's words: wait, where it ends by itself, or change the request."""
    return next((do for pattern, do in _PASSING if re.search(pattern, said, re.IGNORECASE)), _FIX)


def _flags(request: Request, *common: str) -> tuple[str, ...]:
    try:
        return tuple(request.flags(*common))
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


def _refusal_of_empty(request: Request) -> str | None:
    """Slurm's own words when sbatch itself refuses this request: submitted as an empty job, which is cancelled at once.

    It begins later, so that it never has a node. (Of a held job, sbatch does not test whether any node fits.) The journal names it, so
    that the next run cancels it if this process is killed in between.
    """
    path, name = os.environ.get(journal.VARIABLE), f"servemark-preflight-{uuid.uuid4()}"
    jobs_file = Path(path) if path else None
    journal.append(jobs_file, "run", run=name, checkout=Checkout.of(Path.cwd()).model_dump())
    try:
        return _refusal(_flags(request, _LATER, "--output=/dev/null"), f"--job-name={name}")
    finally:
        with contextlib.suppress(CommandFailed):
            commands.scancel(name=name)
            journal.append(jobs_file, "run_ended", run=name)


def _refusal(flags: Sequence[str], how: str = "--test-only") -> str | None:
    """Slurm's own words when it refuses these flags."""
    argv = ["sbatch", how, *flags]
    try:
        commands.run(argv, stdin="#!/bin/sh\ntrue\n", timeout_s=commands.SUBMIT_S, env=submit.exported(os.environ))
    except CommandFailed as error:
        if error.trouble is Trouble.REFUSED:
            return " ".join(_SAID.sub("", line) for line in error.said.splitlines())
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
