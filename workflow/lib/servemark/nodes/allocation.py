"""The nodes that this process may use: those of the Slurm job it runs in, or this machine."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from servemark.errors import StageFailed
from servemark.processes import identity
from servemark.supervisor import process_request
from snakemake_executor_plugin_slurm_guarded.commands import CommandFailed, query_environment, run_with_retries

# Every Slurm tool answers in a second or two; one that does not within this time talks to a controller that is away.
TOOL_S = 60.0


@dataclass(frozen=True)
class Allocation:
    """Where a deployment lives. Without a scheduler: this machine, no job, no end.

    Args:
        nodes: names, this process's own node first.
        ends_at: end of its time, seconds since 1970.
        known_as: the scheduler's address of each node.
        cpus: logical CPUs that the job has on each node.
        component: of a heterogeneous job, the one that each node belongs to: the servers' nodes are in the first, 0.
    """

    job_id: str | None
    nodes: tuple[str, ...]
    ends_at: float | None = None
    known_as: dict[str, str] = field(default_factory=dict)
    cpus: dict[str, int] = field(default_factory=dict)
    component: dict[str, int] = field(default_factory=dict)

    def launcher(self, *nodes: str) -> tuple[str, ...]:
        """Return the ``srun`` that goes before a command to run it once on each of ``nodes`` of one component; nothing on this machine.

        It has all that the job has there, shared with the other steps. ``--overlap``: the step in which the stages run holds the nodes
        already. ``--mpi=none``: no PMI server for programs that are not MPI's.
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
        """Return these nodes in groups that one step can run on."""
        groups: dict[int, list[str]] = {}
        for node in nodes:
            groups.setdefault(self.component.get(node, 0), []).append(node)
        return list(groups.values())


def current() -> Allocation:
    """Return the allocation that this process runs in; raise StageFailed if Slurm does not describe its job."""
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
    """Return Slurm's description of this process's node (``scontrol show node -o``), and how many of its CPUs the job has."""
    job = current()
    node = job.nodes[0]
    return _ask("scontrol", "show", "node", "-o", node), job.cpus.get(node, 0)


def jobs_alive() -> tuple[str, ...]:
    """Return ids of this user's jobs that are not over yet, those of hidden partitions and our own included."""
    listed = _ask("squeue", "--all", "--noheader", "--me", "--format=%A").split()
    # Whatever the list is worth, we are alive.
    mine = os.environ.get("SLURM_JOB_ID")
    return tuple(listed if mine is None or mine in listed else [*listed, mine])


def _components(text: str) -> list[str]:
    """Return the node list of each component of a job, by offset; of a usual job there is one. scontrol may print a component twice."""
    parts = re.split(r"^(?=JobId=)", text, flags=re.MULTILINE)
    found = {_field(part, "HetJobOffset") or "0": _field(part, "NodeList") or "" for part in parts if part.strip()}
    return [found[offset] for offset in sorted(found, key=int)]


def _field(text: str, name: str) -> str | None:
    found = re.search(rf"(?:^|\s){name}=(\S+)", text)
    return found[1] if found else None


def _addresses(described: str) -> dict[str, str]:
    """Return node name -> IPv4 address, from ``scontrol show node -o``; a NodeAddr that is a name is resolved."""
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
            do="Run it by hand on the node; when Slurm's controller is back, run again.",
            reason="slurm_unreachable",
        ) from None
