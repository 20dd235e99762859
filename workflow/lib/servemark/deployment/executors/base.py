"""What each executor states: its ranks, their options and variables, and what has to run before them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from servemark.deployment.context import StageContext
from servemark.deployment.launcher import Ground
from servemark.environments import bytecode_cache
from servemark.launch import command_lines, compile_cache
from servemark.records import Node, RayNode, Replica


@dataclass(frozen=True)
class Rank:
    """One ``vllm serve`` process of a server that has one on each of ``nodes`` nodes.

    Attributes:
        index: which of them; 0 answers requests, the others serve it.
        address: the first one's address; on ``port`` they find each other.
    """

    nodes: int
    index: int
    address: str
    port: int


@dataclass(frozen=True)
class Executor(ABC):
    """Starts the ranks of a deployment on its nodes, the servers' first. Configuration and planning use its ``ExecutorTraits`` only."""

    here: StageContext
    ground: Ground
    nodes: tuple[Node, ...]

    @abstractmethod
    def arguments(self, host: str, rank: Rank | None) -> list[str]:
        """Return the options of ``vllm serve`` at ``host`` that place its ranks, besides their tensor and pipeline parallel size.

        Args:
            rank: which of a server's processes; None: it is the only one.
        """

    def ranks(self, index: int, replica: Replica) -> tuple[Rank | None, ...]:
        """Return one entry for each ``vllm serve`` process of the replica of this number (from 0), in the order of its parts."""
        return (None,)

    def variables(self, devices: Sequence[int]) -> dict[str, str]:
        """Return the variables that the executor needs where ranks run, on these devices; the deployment's own take precedence."""
        return {}

    def bring_up(self, replicas: tuple[Replica, ...]) -> tuple[tuple[Replica, ...], tuple[RayNode, ...]]:
        """Start what has to run before the servers; return the replicas with its address, and its nodes.

        Raises:
            StageFailed: something did not come up.
        """
        return replicas, ()

    def server_environment(self, replica: Replica, node: Node, devices: Sequence[int]) -> dict[str, str]:
        """Return all variables of a ``vllm serve`` process, except its secrets."""
        return self.environment(node, devices)

    def environment(self, node: Node, devices: Sequence[int] = ()) -> dict[str, str]:
        """Return all variables of a process on ``node`` in which ranks run."""
        here, scratch = self.here, self.ground.scratch
        caches = str(here.caches or compile_cache.fresh(scratch))
        env = command_lines.server_environment(here.plan, here.hardware.accelerator, node, str(scratch), caches, self.variables(devices))
        return bytecode_cache.variables(here.environment) | env
