"""Executors start the ranks of a replica: a module for each name of ``servemark.records.topology.EXECUTORS``, with its class."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from servemark.deployment.context import StageContext
from servemark.deployment.launcher import Launcher
from servemark.environments import bytecode_cache
from servemark.launch import command_lines, compile_cache
from servemark.records import Node, Replica


@dataclass(frozen=True)
class Executor(ABC):
    """Starts the ranks of a deployment on ``nodes``, the servers' first. Configuration and planning use only its ``ExecutorTraits``."""

    here: StageContext
    launcher: Launcher
    nodes: tuple[Node, ...]

    @abstractmethod
    def processes(self, index: int, replica: Replica) -> list[list[str]]:
        """Return the options of each ``vllm serve`` process of replica ``index`` (from 0), in the order of its parts.

        They place the ranks. Tensor and pipeline parallel size are not among them. The first process receives the requests.
        """

    def variables(self, devices: Sequence[int]) -> dict[str, str]:
        """Return the variables that ranks on these devices need. The deployment's own variables take precedence."""
        return {}

    def bring_up(self, replicas: tuple[Replica, ...]) -> dict[str, Any]:
        """Start what the servers need, such as Ray; return what the cluster's record states of it: the replicas, and Ray's nodes.

        Raises:
            StageFailed: it did not start.
        """
        return {"replicas": replicas}

    def server_environment(self, replica: Replica, node: Node, devices: Sequence[int]) -> dict[str, str]:
        """Return all variables of a ``vllm serve`` process, except its secrets."""
        return self.environment(node, devices)

    def environment(self, node: Node, devices: Sequence[int] = ()) -> dict[str, str]:
        """Return all variables of a process with ranks on ``node``."""
        here, scratch = self.here, self.launcher.scratch
        caches = str(here.caches or compile_cache.fresh(scratch))
        env = command_lines.server_environment(here.plan, here.hardware.accelerator, node, str(scratch), caches, self.variables(devices))
        return bytecode_cache.variables(here.environment) | env


def of(here: StageContext, launcher: Launcher, nodes: tuple[Node, ...]) -> Executor:
    """Return the executor of a deployment: for ``mp``, the class ``Mp`` of the module ``mp``."""
    name = here.plan.topology.executor
    kind: type[Executor] = getattr(import_module(f"{__name__}.{name}"), name.capitalize())
    return kind(here, launcher, nodes)
