"""Check before a run submits anything that Slurm's commands exist, its controller responds, and it accepts each request."""

import contextlib
import os
import re
import shutil
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

from snakemake_executor_plugin_slurm_guarded import commands, journal, limits, submit
from snakemake_executor_plugin_slurm_guarded.commands import CommandFailed, Trouble
from snakemake_executor_plugin_slurm_guarded.errors import TERMS, GuardedError
from snakemake_executor_plugin_slurm_guarded.queries import nodes_out
from snakemake_executor_plugin_slurm_guarded.records import Checkout
from snakemake_executor_plugin_slurm_guarded.request import Request

TOOLS = ("sbatch", "squeue", "scancel", "scontrol", "srun", "sinfo")
NAME = "slurm-guarded-preflight-"
# Restarting slurmctld takes seconds to a minute, and happens on every change of a cluster's configuration.
PATIENCE_S = 60.0

_SAID = re.compile(r"^(sbatch: )?((error|fatal): )?((Batch job submission failed|allocation failure): )?")
# Slurm's words (slurm/src/common/slurm_errno.c), and the keys of TERMS to check; the first match counts.
_ABOUT = (
    (r"violates accounting/qos policy", "qos account time nodes"),
    (r"invalid account|account/partition combination|user'?s? .*account", "account partition"),
    (r"invalid qos|requested qos", "qos"),
    (r"partition.*(invalid|not available|down|inactive|drain)|invalid partition|required partition", "partition"),
    # A site's own plugin refuses --exclusive in its own words (job_submit in slurm.conf(5)).
    (r"exclusive|oversubscribe|whole nodes?\b|entire nodes?\b", "exclusive"),
    (r"generic resource|gres", "gres"),
    (r"feature", "constraint"),
    (r"time limit|requested time|timelimit", "time"),
    (r"node count|more nodes|more processors|too many", "nodes"),
    (r"node configuration is not available", "nodes gres constraint"),
    (r"unrecognized option|invalid option|ambiguous|invalid --|requires an argument", "extra"),
)
# Refusals that need no change of the request: Slurm's words, and what to do.
_PASSING = (
    (r"inactive or drain",
     "The partition takes no jobs now (`scontrol show partition`). Run the same command again when it is UP, or choose another one."),
    (r"submit\w*limit",
     "The limit on jobs in the queue is reached. Run the same command again when other jobs have ended (`squeue --me`), or add --jobs "
     "NUMBER for fewer jobs at a time. `sacctmgr show qos` and `sacctmgr show assoc user=$USER` show the limits."),
)  # fmt: skip
# `sbatch --test-only` prints this both for nodes out of service and for nodes that do not exist (slurmctld, job_start_data).
_NO_NODES = r"node configuration is not available|down, drained or reserved"
_LIMITS = (
    "Change the named keys. `sacctmgr show qos`, `sacctmgr show assoc user=$USER` and `scontrol show partition` show the limits; only the "
    "cluster's administrators can raise them."
)
# Longer than a submission and its cancellation take.
_LATER = "--begin=now+120"


def keys_for(said: str) -> tuple[str, ...]:
    """Return the keys of :data:`TERMS` to check after this refusal by Slurm; empty for unlisted words."""
    return next((tuple(keys.split()) for pattern, keys in _ABOUT if re.search(pattern, said, re.IGNORECASE)), ())


def remedy(said: str) -> str:
    """Return what to do about a refusal by Slurm: wait if it will pass, else change the request."""
    fix = f"Fix {TERMS['place']}. `sinfo` and `sacctmgr show assoc user=$USER` show what the cluster offers."
    return next((do for pattern, do in _PASSING if re.search(pattern, said, re.IGNORECASE)), fix)


def check(requests: Sequence[Request], say: Callable[[str], None], *, patience_s: float = PATIENCE_S) -> None:
    """Refuse requests that sbatch would refuse or never start; report requests that it would queue but cannot start now.

    ``sbatch --test-only`` also refuses jobs that only cannot start now. For these, an empty job, cancelled at once, decides.

    Args:
        requests: the jobs of a run; equal ones are checked once.
        say: gets a message while the controller does not respond, and one for each job that will wait in the queue.

    Raises:
        GuardedError: Slurm's commands are missing, its controller does not respond, or it refuses requests (the error names all).
    """
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        raise GuardedError(
            f"This machine does not have these Slurm commands: {', '.join(missing)}.",
            do=commands.LOGIN_NODE,
            reason="slurm_missing",
        )
    outage = submit.Outage(say)
    try:
        # Not `scontrol ping`: it reports the controller as up before it responds to queries about jobs.
        commands.run_with_retries(["squeue", "--noheader", f"--user={os.getuid()}"], patience_s=patience_s, waiting=outage.begins)
        outage.ends()
    except CommandFailed as error:
        # A refusal is a response too.
        if error.trouble is not Trouble.REFUSED:
            raise error.for_user(f"No request was checked within {patience_s:.0f} s") from error
    site = limits.read()
    for note in limits.notes(requests, site):
        say(note)
    names: dict[tuple[str, ...], list[str]] = {}
    refused: dict[tuple[str, ...], str] = {}
    exceeded: dict[tuple[str, ...], list[str]] = {}
    for request in requests:
        flags = _flags(request)
        names.setdefault(flags, []).append(request.name)
        if len(names[flags]) > 1:
            continue
        if not (said := _refusal(flags)):
            if over := limits.problems(request, site):
                exceeded[flags] = over
            continue
        out = nodes_out(request.partition)
        # With all nodes in service, sbatch may queue a job that fits none of them (EnforcePartLimits=NO) and would never start.
        never = out == "" and re.search(_NO_NODES, said, re.IGNORECASE)
        if final := said if never else _refusal_of_empty(request):
            refused[flags] = final
            continue
        nodes = f" Nodes out of service: {out}; `sinfo -R` shows why." if out else ""
        say(f"{request.name}: Slurm accepts this job but cannot start it now. It reports: {said}.{nodes} The job will wait in the queue.")
    lines = []
    for flags, said in refused.items():
        keys = ", ".join(TERMS[key] for key in keys_for(said))
        about = f" (see {keys})" if keys else ""
        lines.append(f"{', '.join(names[flags])}: Slurm refuses the request{about}: {said}\n  sbatch {' '.join(flags)}")
    for flags, over in exceeded.items():
        lines.append(f"{', '.join(names[flags])}: the request exceeds a limit. {' '.join(over)}\n  sbatch {' '.join(flags)}")
    if lines:
        todo = [*map(remedy, refused.values()), *([_LIMITS] if exceeded else [])]
        raise GuardedError("\n".join(lines), do="\n".join(dict.fromkeys(todo)), reason="slurm_refused")


def _flags(request: Request, *common: str) -> tuple[str, ...]:
    try:
        return tuple(request.flags(*common))
    except ValueError as error:
        raise GuardedError(
            f"{request.name}: sbatch's extra options cannot be split into words ({error}): {request.extra}",
            do=f"Fix {TERMS['extra']} in {TERMS['place']}.",
            reason="slurm_refused",
        ) from error


def _refusal_of_empty(request: Request) -> str | None:
    """Submit an empty job with this request and cancel it at once; return Slurm's words if sbatch refused it.

    The job begins later, so that it never gets a node. (For a held job, sbatch does not test whether any node fits.) The journal names it,
    so that the next run cancels it if this process is killed in between.
    """
    path, name = journal.place(), f"{NAME}{uuid.uuid4()}"
    journal.append(path, "run", run=name, checkout=Checkout.of(Path.cwd()).model_dump())
    try:
        return _refusal(_flags(request, _LATER, "--output=/dev/null"), f"--job-name={name}")
    finally:
        with contextlib.suppress(CommandFailed):
            commands.scancel(name=name)
            journal.append(path, "run_ended", run=name)


def _refusal(flags: Sequence[str], how: str = "--test-only") -> str | None:
    """Return Slurm's words if it refuses these flags, else None."""
    argv = ["sbatch", how, *flags]
    try:
        commands.run(argv, stdin="#!/bin/sh\ntrue\n", timeout_s=commands.SUBMIT_S, env=submit.exported(os.environ))
    except CommandFailed as error:
        if error.trouble is Trouble.REFUSED:
            return " ".join(_SAID.sub("", line) for line in error.said.splitlines())
        raise error.for_user("The requests were not checked") from error
    return None
