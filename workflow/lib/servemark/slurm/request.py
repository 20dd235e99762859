"""What is asked of Slurm for one job, and the same as flags of sbatch and as resources of a Snakemake rule."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Request:
    """One job's demands. None and "" leave the choice to Slurm.

    Attributes:
        name: of the deployment or rule, for messages.
        nodes: number of nodes; one task is started on each.
        client: flags of a second component of one node without GPUs, for the client; account, partition, QOS and time are the first
            one's where it does not name others. None: no such node. Slurm calls this a heterogeneous job.
        gres: per node, e.g. ``gpu:4``.
        minutes: time limit.
        exclusive: whole nodes: every core, all memory.
        cpus: cores per task, without ``exclusive``.
        memory_mb: MiB per node, without ``exclusive``.
        extra: further flags of sbatch, as one would type them.
    """

    name: str = ""
    account: str | None = None
    partition: str | None = None
    qos: str | None = None
    constraint: str | None = None
    nodes: int = 1
    gres: str | None = None
    minutes: int | None = None
    exclusive: bool = False
    extra: str = ""
    cpus: int | None = None
    memory_mb: int | None = None
    client: str | None = None

    def flags(self, *common: str) -> list[str]:
        """The flags for sbatch, each one word; none goes through a shell.

        Args:
            common: further flags, which every component needs.

        Raises:
            ValueError: ``extra`` or ``client`` is no list of words (a quote is not closed).
        """
        servers = self._component(self.nodes, {"constraint": self.constraint, "gres": self.gres})
        flags = [*servers, *common, *shlex.split(self.extra)]
        if self.client is not None:
            flags += [":", *self._component(1, {}), *common, *shlex.split(self.client)]
        return flags

    def _component(self, nodes: int, more: Mapping[str, str | None]) -> list[str]:
        flags = [f"--nodes={nodes}", "--ntasks-per-node=1"]
        named = {"account": self.account, "partition": self.partition, "qos": self.qos, **more, "time": self.minutes}
        flags += [f"--{name}={value}" for name, value in named.items() if value]
        if self.exclusive:
            # Without --mem=0 a whole node comes with the partition's default memory only.
            return [*flags, "--exclusive", "--mem=0"]
        flags += [f"--cpus-per-task={self.cpus}"] if self.cpus else []
        return flags + ([f"--mem={self.memory_mb}M"] if self.memory_mb else [])

    def resources(self) -> dict[str, str | int]:
        """The same as resources of a Snakemake rule; :meth:`of` reads them back. Give them to one rule of a group only:
        Snakemake adds up ``runtime`` over a group, takes the largest of other numbers, and refuses texts that differ.
        """
        named: dict[str, str | int | None] = {
            "slurm_account": self.account,
            "slurm_partition": self.partition,
            "qos": self.qos,
            "constraint": self.constraint,
            "nodes": self.nodes,
            "gres": self.gres,
            "runtime": self.minutes,
            "slurm_exclusive": int(self.exclusive),
            "slurm_extra": self.extra,
            "cpus_per_task": self.cpus,
            "mem_mb": self.memory_mb,
            "slurm_client": self.client,
        }
        return {name: value for name, value in named.items() if value}

    @classmethod
    def of(cls, resources: Mapping[str, Any], *, name: str = "", threads: int = 1) -> Request:
        """What a job's resources ask for. ``threads`` are its cores when ``cpus_per_task`` does not say otherwise."""

        def text(key: str) -> str | None:
            value = resources.get(key)
            return str(value) if value not in (None, "") else None

        def number(key: str) -> int | None:
            return int(value) if (value := resources.get(key)) else None

        exclusive = bool(number("slurm_exclusive"))
        return cls(
            name=name,
            account=text("slurm_account"),
            partition=text("slurm_partition"),
            qos=text("qos"),
            constraint=text("constraint"),
            nodes=number("nodes") or 1,
            gres=text("gres"),
            minutes=number("runtime"),
            exclusive=exclusive,
            extra=text("slurm_extra") or "",
            cpus=None if exclusive else number("cpus_per_task") or threads,
            memory_mb=None if exclusive else number("mem_mb"),
            client=text("slurm_client"),
        )
