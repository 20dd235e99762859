"""The request for one job, as sbatch flags and as resources of a Snakemake rule."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Request:
    """What one job requests. None and "" leave the choice to Slurm.

    ``second`` holds sbatch flags of a second component with one node and no gres (a heterogeneous job). Its account, partition, QOS and
    time are those of the first unless these flags name others. None: no second component.
    """

    name: str = ""  # for messages
    account: str | None = None
    partition: str | None = None
    qos: str | None = None
    constraint: str | None = None
    nodes: int = 1  # with one task on each
    gres: str | None = None  # per node, e.g. gpu:4
    minutes: int | None = None  # time limit
    exclusive: bool = False  # whole nodes with all cores and memory; cpus and memory_mb are ignored then
    extra: str = ""  # further sbatch flags, as you would type them
    cpus: int | None = None  # per task
    memory_mb: int | None = None  # MiB per node
    second: str | None = None

    def flags(self, *common: str) -> list[str]:
        """Return the sbatch flags, one word each, with the ``common`` ones for every component.

        Raises:
            ValueError: ``extra`` or ``second`` cannot be split into words (a quote is not closed).
        """
        first = self._component(self.nodes, {"constraint": self.constraint, "gres": self.gres})
        flags = [*first, *common, *shlex.split(self.extra)]
        if self.second is not None:
            flags += [":", *self._component(1, {}), *common, *shlex.split(self.second)]
        return flags

    def _component(self, nodes: int, more: Mapping[str, str | None]) -> list[str]:
        flags = [f"--nodes={nodes}", "--ntasks-per-node=1"]
        named = {"account": self.account, "partition": self.partition, "qos": self.qos, **more, "time": self.minutes}
        flags += [f"--{name}={value}" for name, value in named.items() if value]
        if self.exclusive:
            # Without --mem=0 the job would get only the partition's default memory.
            return [*flags, "--exclusive", "--mem=0"]
        flags += [f"--cpus-per-task={self.cpus}"] if self.cpus else []
        return flags + ([f"--mem={self.memory_mb}M"] if self.memory_mb else [])

    def resources(self) -> dict[str, str | int]:
        """Return the request as resources of a Snakemake rule; :meth:`of` reads them back.

        Give them to only one rule of a group: over a group, Snakemake adds up ``runtime``, takes the maximum of other numbers, and refuses
        different texts.
        """
        values = {name: getattr(self, attribute) for name, (attribute, _) in _RESOURCES.items()}
        return {name: int(value) if value is True else value for name, value in values.items() if value}

    @classmethod
    def of(cls, resources: Mapping[str, Any], *, name: str = "", threads: int = 1) -> Request:
        """Read the request from a job's resources; ``threads`` are its cores if it has no ``cpus_per_task``."""
        given: dict[str, Any] = {}
        for resource, (attribute, nothing) in _RESOURCES.items():
            if (value := resources.get(resource)) not in (None, "", 0, "0"):
                given[attribute] = str(value) if isinstance(nothing, str) else int(value)
        exclusive = given["exclusive"] = bool(given.get("exclusive"))
        given["cpus"] = None if exclusive else given.get("cpus", threads)
        given["memory_mb"] = None if exclusive else given.get("memory_mb")
        return cls(name=name, **given)


_RESOURCES: dict[str, tuple[str, str | int]] = {
    "slurm_account": ("account", ""), "slurm_partition": ("partition", ""), "qos": ("qos", ""), "constraint": ("constraint", ""),
    "nodes": ("nodes", 1), "gres": ("gres", ""), "runtime": ("minutes", 0), "slurm_exclusive": ("exclusive", 0),
    "slurm_extra": ("extra", ""), "cpus_per_task": ("cpus", 0), "mem_mb": ("memory_mb", 0), "slurm_second": ("second", ""),
}  # fmt: skip
RESOURCES = {resource: nothing for resource, (_, nothing) in _RESOURCES.items()}
"""The resources that a request may have, each with the value that requests nothing."""
