"""The allocation that this process runs in, a Slurm job or this machine: its nodes, its end, its suspensions."""

import contextlib
import os
import re
import shutil
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from servemark.errors import StageFailed
from servemark.measurement.reasons import AGAIN
from servemark.processes import identity
from servemark.supervisor import process_request
from snakemake_executor_plugin_slurm_guarded import commands
from snakemake_executor_plugin_slurm_guarded.commands import CommandFailed, query_environment, run_with_retries
from snakemake_executor_plugin_slurm_guarded.job_accounts import ENVIRONMENT

# Slurm's tools respond within a second or two. One that takes longer than this waits for slurmctld.
TOOL_S = 60.0
# After each load point, servemark queries Slurm for suspensions. It waits at most this time for slurmctld.
SUSPENSION_S = 10.0
# The time of the last suspension or resumption, one for each component of a heterogeneous job.
_CHANGED = re.compile(r"\bSuspendTime=(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\b")


@dataclass(frozen=True)
class Allocation:
    """The nodes of a deployment. Without a scheduler: this machine, no job, no end.

    Args:
        nodes: names, this process's own node first.
        ends_at: time limit, seconds since 1970.
        known_as: Slurm's address of each node.
        cpus: logical CPUs that the job has on each node.
        component: each node's component of a heterogeneous job; the servers' nodes are in component 0.
    """

    job_id: str | None
    nodes: tuple[str, ...]
    ends_at: float | None = None
    known_as: dict[str, str] = field(default_factory=dict)
    cpus: dict[str, int] = field(default_factory=dict)
    component: dict[str, int] = field(default_factory=dict)

    def srun(self, *nodes: str) -> tuple[str, ...]:
        """Return the ``srun`` that runs a command once on each of ``nodes`` of one component; nothing without a scheduler.

        The command may use all that the job has there. ``--overlap``: the step of the stages already has the nodes. ``--mpi=none``: start
        no PMI server.
        """
        if self.job_id is None:
            return ()
        cpus, component = min((self.cpus.get(node, 0) for node in nodes), default=0), self.component.get(nodes[0])
        return (
            *("srun", f"--jobid={self.job_id}", *([f"--het-group={component}"] if component is not None else []), "--overlap"),
            *(f"--nodelist={','.join(nodes)}", f"--nodes={len(nodes)}", f"--ntasks={len(nodes)}", "--ntasks-per-node=1"),
            *([f"--cpus-per-task={cpus}"] if cpus else []),
            *("--mem=0", "--cpu-bind=none", "--mpi=none", "--export=ALL"),
        )

    def by_component(self, nodes: Sequence[str]) -> list[list[str]]:
        """Return the nodes grouped by component, because a step cannot span components."""
        groups: dict[int, list[str]] = {}
        for node in nodes:
            groups.setdefault(self.component.get(node, 0), []).append(node)
        return list(groups.values())


def current() -> Allocation:
    """Return the allocation of this process.

    Raises:
        StageFailed: Slurm does not describe the job.
    """
    job_id = os.environ.get("SLURM_JOB_ID")
    if job_id is None or shutil.which("scontrol") is None:
        return Allocation(None, (identity.host(),))
    text = _ask("scontrol", "show", "job", "-d", job_id)
    components = [_ask("scontrol", "show", "hostnames", names).split() for names in _components(text) or [""]]
    component = {name: number for number, names in enumerate(components) for name in names}
    described = _ask("scontrol", "show", "node", "-o", ",".join(component))
    mine = os.environ.get("SLURMD_NODENAME") or identity.host()
    ordered = sorted(component, key=lambda node: (component[node], node != mine))
    end = _field(text, "EndTime")
    return Allocation(
        job_id,
        tuple(ordered),
        ends_at=datetime.fromisoformat(end).timestamp() if end and end[0].isdigit() else None,
        known_as=_addresses(described),
        cpus=_cpus(text),
        component=component if len(components) > 1 else {},
    )


def own_node() -> tuple[str, int]:
    """Return Slurm's description of this process's node (``scontrol show node -o``) and the number of its CPUs that the job has."""
    job = current()
    node = job.nodes[0]
    return _ask("scontrol", "show", "node", "-o", node), job.cpus.get(node, 0)


def jobs_alive() -> tuple[str, ...]:
    """Return ids of this user's jobs that have not ended, those of hidden partitions and this process's own included."""
    listed = _ask("squeue", "--all", "--noheader", "--me", "--format=%A").split()
    return tuple(dict.fromkeys([*listed, *filter(None, [os.environ.get("SLURM_JOB_ID")])]))


def suspended_since(began: datetime) -> str | None:
    """Return words for a suspension of our job (``scontrol suspend``, gang scheduling, preemption) since ``began``.

    Slurm's times are whole seconds of slurmctld's clock.

    Returns:
        None without a suspension, outside a job, and if slurmctld does not respond.
    """
    job = os.environ.get("SLURM_JOB_ID")
    if job is None:
        return None
    env = query_environment(process_request.launcher_environment()) | ENVIRONMENT
    try:
        text = commands.run(["scontrol", "show", "job", "-d", job], timeout_s=SUSPENSION_S, env=env)
    except CommandFailed:
        return None
    changed = max((datetime.fromisoformat(found).replace(tzinfo=UTC) for found in _CHANGED.findall(text)), default=None)
    if changed is None or changed < began.astimezone(UTC).replace(microsecond=0):
        return None
    return f"Slurm suspended job {job} during the measurement, or resumed it (SuspendTime {changed:%Y-%m-%d %H:%M:%S} UTC). {AGAIN}"


def _components(text: str) -> list[str]:
    """Return the node list of each component of a job, by offset. An ordinary job has one. scontrol may print a component twice."""
    parts = re.split(r"^(?=JobId=)", text, flags=re.MULTILINE)
    found = {_field(part, "HetJobOffset") or "0": _field(part, "NodeList") or "" for part in parts if part.strip()}
    return [found[offset] for offset in sorted(found, key=int)]


def _field(text: str, name: str) -> str | None:
    found = re.search(rf"(?:^|\s){name}=(\S+)", text)
    return found[1] if found else None


def _addresses(described: str) -> dict[str, str]:
    """Return node name -> IPv4 address, from ``scontrol show node -o``. Resolve a NodeAddr that is a name."""
    found = {}
    for line in described.splitlines():
        name, address = _field(line, "NodeName"), _field(line, "NodeAddr")
        if name and address:
            found[name] = address
            with contextlib.suppress(OSError):
                found[name] = socket.gethostbyname(address)
    return found


def _cpus(text: str) -> dict[str, int]:
    """Return logical CPUs by node, from the lines ``Nodes=... CPU_IDs=0-3,8 Mem=...`` of ``scontrol show job -d``."""
    found: dict[str, int] = {}
    for names, ids in re.findall(r"\bNodes=(\S+) CPU_IDs=(\S+)", text):
        count = sum(int(b or a) - int(a) + 1 for a, b in re.findall(r"(\d+)(?:-(\d+))?", ids))
        nodes = [names] if "[" not in names else _ask("scontrol", "show", "hostnames", names).split()
        found |= dict.fromkeys(nodes, count)
    return found


def _ask(*argv: str) -> str:
    try:
        return run_with_retries(argv, env=query_environment(process_request.launcher_environment()), timeout_s=TOOL_S)
    except CommandFailed as error:
        raise StageFailed(
            f"`{' '.join(argv)}` failed: {error.said[-300:]}",
            do="Run the command by hand on the node. When slurmctld responds again, rerun.",
            reason="slurm_unreachable",
        ) from None
