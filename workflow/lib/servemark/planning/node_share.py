"""Compute the hardware of a deployment's job on a node from a probe whose job has only one GPU and a core.

Control groups may hide the other devices and cores from that job. The probe takes the kind of GPU from its own one, and the numbers from
``scontrol show node``. /proc/meminfo shows the node's whole memory to every job. ``start_cluster`` compares the result with what each
deployment's job finds and refuses a difference.
"""

from __future__ import annotations

import math
import re
from pathlib import Path

from servemark.errors import ServemarkError
from servemark.records import Gpu, Hardware, Strict

WHOLE_NODE = "Set `small_jobs.whole_node: true` in the cluster file: the probe then gets the same node share as a deployment."


class Share(Strict):
    """The share of each node that a deployment's job requests. ``cpus``: ignored for a whole node (``exclusive``)."""

    exclusive: bool
    gpus: int
    cpus: int | None


class NodePart(Strict):
    """The node, and the part of it that the probe's job has.

    Attributes:
        node: fields of ``scontrol show node -o`` by name.
        cpus: CPUs of the node that Slurm gives to jobs.
        given: CPUs that Slurm gave to the probe's job on it.
        online: logical CPUs of the machine.
    """

    node: dict[str, str]
    cpus: int
    given: int
    online: int

    @classmethod
    def read(cls, described: str, given: int) -> NodePart:
        """Read the text of ``scontrol show node -o NODE``; raise ServemarkError without the CPUs of node and job."""
        node = dict(re.findall(r"(?:^|\s)([A-Z]\w*)=(\S*)", described))
        cpus = node.get("CPUEfctv") or node.get("CPUTot", "")
        if not cpus.isdigit() or not given:
            raise ServemarkError(
                f"Slurm reports no CPUs of this node (CPUEfctv or CPUTot: {cpus!r}) or none of this job on it (CPU_IDs: {given}).",
                look="`scontrol show node` and `scontrol show job -d` on the node",
                do=WHOLE_NODE,
                reason="node_not_described",
            )
        return cls(node=node, cpus=int(cpus), given=given, online=count(Path("/sys/devices/system/cpu/online").read_text()))

    @property
    def gpus(self) -> dict[str, int]:
        """Number of GPUs of the node by type ("" without a type), from text such as ``Gres=gpu:h100:4(S:0-1),nvme:1``."""
        found: dict[str, int] = {}
        for kind, number in re.findall(r"(?:^|,)gpu(?::([^:,()]+))??:(\d+)", self.node.get("Gres", "")):
            found[kind] = found.get(kind, 0) + int(number)
        return found


def count(numbers: str) -> int:
    """Return the number of CPUs in a list such as ``0-3,8``."""
    return sum(int(last or first) - int(first) + 1 for first, last in re.findall(r"(\d+)(?:-(\d+))?", numbers))


def complete(found: Hardware, share: Share, part: NodePart) -> Hardware:
    """Return the hardware of a deployment's job from the hardware that the probe's job found on the same node.

    ServemarkError: the node has GPUs of several kinds, so one does not describe the others.
    """
    gpus, of_gpus = _gpus(found, share, part)
    cpus, of_cpus = _cpus(found.cpu_count, share, part)
    every = len(found.gpus) + found.hidden_gpus
    return found.model_copy(
        update={
            "gpus": gpus,
            "cpu_count": cpus,
            # GPUs that Slurm hid from the probe's job are not hidden from a deployment's.
            "hidden_gpus": 0 if of_gpus else found.hidden_gpus,
            "cuda_visible_devices": None if of_gpus else found.cuda_visible_devices,
            "gpu_topology": found.gpu_topology if len(gpus) <= every else None,
            "worked_out": {**of_gpus, **of_cpus},
        }
    )


def _gpus(found: Hardware, share: Share, part: NodePart) -> tuple[tuple[Gpu, ...], dict[str, str]]:
    """Return the GPUs of a deployment's job, and the source of their number if the probe did not see them all.

    Slurm gives an exclusive job all GPUs of its nodes, whatever it requests (sbatch(1), ``--exclusive``).
    """
    listed = part.gpus
    number = sum(listed.values()) if share.exclusive and listed else share.gpus
    if not found.gpus or not share.gpus or number == len(found.gpus):
        return found.gpus, {}
    if (len(listed) > 1 and share.exclusive) or len({(gpu.name, gpu.memory_mib) for gpu in found.gpus}) > 1:
        raise ServemarkError(
            f"Node {found.host} has GPUs of several kinds (Slurm: Gres={part.node.get('Gres')}), and the probe's job sees only "
            f"{len(found.gpus)} of them.",
            do=WHOLE_NODE,
            reason="gpu_kinds_open",
        )
    one = found.gpus[0]
    source = f"Gres={part.node['Gres']} of this node in Slurm" if share.exclusive else "gpus_per_node of the cluster file"
    # The topology shows GPUs that only CUDA_VISIBLE_DEVICES hides.
    seen = {gpu.index for gpu in found.gpus}
    free = [index for index in range(len(found.gpus) + found.hidden_gpus) if index not in seen]
    missing = range(number - len(found.gpus))
    places = free[: len(missing)] if len(free) >= len(missing) else [None for _ in missing]
    gpus = (*found.gpus[:number], *(one.model_copy(update={"uuid": None, "index": place}) for place in places))
    return gpus, {"gpus": f"{number}, from {source}; the probe's job had {len(found.gpus)} and took the kind from them"}


def _cpus(seen: int, share: Share, part: NodePart) -> tuple[int, dict[str, str]]:
    """Return the logical CPUs of a deployment's job, and the source of the number if the probe did not see them all.

    If the probe's job may use every CPU, Slurm does not constrain jobs. Otherwise the number grows in proportion to Slurm's CPUs, which may
    be cores of two threads. Slurm gives whole cores.
    """
    if seen == part.online:
        return seen, {}
    if share.exclusive or share.cpus is None:
        given, source = part.cpus, f"the {part.cpus} CPUs of this node that Slurm gives to jobs"
    else:
        given = math.ceil(share.cpus / part.given) * part.given
        source = f"cpus_per_node {share.cpus} of the cluster file"
    number = min(given * seen // part.given, part.online)
    if number == seen:
        return seen, {}
    return number, {"cpu_count": f"{number}, from {source}; the probe's job had {part.given} and could use {seen} of {part.online}"}
