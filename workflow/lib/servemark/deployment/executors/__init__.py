"""What starts the ranks of a replica: a module for each name of ``servemark.records.topology.EXECUTORS``, with its class."""

from __future__ import annotations

from importlib import import_module

from servemark.deployment.context import StageContext
from servemark.deployment.executors.base import Executor
from servemark.deployment.launcher import Ground
from servemark.records import Node


def of(here: StageContext, ground: Ground, nodes: tuple[Node, ...]) -> Executor:
    """Return the executor of a deployment: for ``mp``, the class ``Mp`` of the module ``mp``."""
    name = here.plan.topology.executor
    kind: type[Executor] = getattr(import_module(f"{__name__}.{name}"), name.capitalize())
    return kind(here, ground, nodes)
