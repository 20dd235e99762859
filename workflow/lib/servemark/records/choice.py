"""The topologies that servemark chose for deployments with ``topology: auto``."""

from pydantic import Field

from servemark.records.base import Record, Strict
from servemark.records.topology import Shape


class TopologyChoice(Strict):
    """The topology of one deployment, chosen once."""

    source: str = Field(description="source of the model; for another one servemark chooses again")
    topology: Shape
    why: str = Field(description="nodes and load of the choice, and why a smaller topology does not suffice")


class Topologies(Record):
    """The choices of a run. The main process writes it before the first job of a deployment with `topology: auto`."""

    KIND = "topologies"
    deployments: dict[str, TopologyChoice]
