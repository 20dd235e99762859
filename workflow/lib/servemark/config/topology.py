"""How a deployment spreads over nodes and devices, as the configuration says it."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from servemark import records
from servemark.config.cluster import Cluster
from servemark.config.kinds import Count, refuse
from servemark.records import Strict


def _replica_size(topology: dict[str, Any]) -> int:
    return topology["tensor_parallel"] * topology["pipeline_parallel"] * topology["data_parallel"]


def _executor(topology: dict[str, Any]) -> Literal["single", "mp"]:
    return "single" if _replica_size(topology) == 1 else "mp"


class Topology(Strict):
    """How a deployment spreads over devices."""

    nodes: Count = Field(
        default=1,
        description="nodes of the servers; more than 1 needs a `cluster`. Ranks are divided over them evenly: several "
        "whole replicas a node, or several whole nodes a replica",
    )
    tensor_parallel: Count = Field(default=1, description="tensor parallel size: ranks that share every layer")
    pipeline_parallel: Count = Field(default=1, description="pipeline parallel size: ranks that each hold some layers")
    data_parallel: Count = Field(
        default=1,
        description="data parallel size: engines of tensor_parallel x pipeline_parallel ranks behind one server; with "
        "`mp`, a replica of several nodes has whole engines on each",
    )
    replicas: Count = Field(default=1, description="servers of the same kind behind one address")
    balancing: Literal["server", "router"] = Field(
        default="server",
        description="who spreads requests over the data parallel engines of a server: `server`, vLLM itself, by what it last heard of "
        "their queues, which leaves some engines with more than others; or `router`, the router in front, one request to each engine "
        "in turn, which keeps them equal where requests are alike",
    )
    client: Literal["head", "own"] = Field(
        default="head",
        description="where the benchmark client runs: `head`, beside the first server, or `own`, a further node of the "
        "same allocation, where it takes no CPU time from a server; `own` needs a `cluster`",
    )
    # Last: its default and its check look at the fields above.
    executor: Literal["single", "mp", "ray"] = Field(
        default_factory=_executor,
        description="what starts a replica's ranks: `single` (one process), `mp` (vLLM's own processes, on every node) or "
        "`ray`; when left out, `single` for a replica of one rank and `mp` for several",
    )

    @property
    def all_nodes(self) -> int:
        """Nodes of the allocation: those of the servers, and the client's own where it has one."""
        return self.record().all_nodes

    @property
    def devices_per_node(self) -> int:
        """Devices that the servers use on each of their nodes."""
        return self.record().devices_per_node

    def record(self) -> records.Topology:
        """The topology as records and planning hold it, with the devices that it takes of each node."""
        asked = self.model_dump()
        return records.Topology(**asked, devices_per_node=-(-_replica_size(asked) * self.replicas // self.nodes))

    @field_validator("executor")
    @classmethod
    def _ranks_fit(cls, executor: str, info: ValidationInfo) -> str:
        sizes = ("tensor_parallel", "pipeline_parallel", "data_parallel")
        ranks = _replica_size({size: info.data.get(size, 1) for size in sizes})
        if executor == "single" and ranks > 1:
            raise refuse(
                f"`single` is one process, and {' x '.join(sizes)} is {ranks}; write `mp` or nothing",
                allowed=("mp", "ray"),
            )
        return executor

    @model_validator(mode="after")
    def _something_to_balance(self) -> Topology:
        if self.balancing == "router" and self.data_parallel == 1:
            raise refuse(
                "`router` spreads requests over data parallel engines, and data_parallel is 1; leave it out, or raise data_parallel",
                at=("balancing",),
            )
        return self

    @model_validator(mode="after")
    def _within_reach(self, info: ValidationInfo) -> Topology:
        """With a cluster, or None, as validation context: whether it has such nodes."""
        context = info.context or {}
        if "cluster" not in context:
            return self
        cluster: Cluster | None = context["cluster"]
        if cluster is None:
            way_out = "needs a scheduler: run with --profile profiles/slurm, or write `cluster: NAME`"
            if self.nodes > 1:
                raise refuse(f"more than one node {way_out}", at=("nodes",))
            if self.client == "own":
                raise refuse(f"a node of its own for the client {way_out}", at=("client",))
        elif 0 < cluster.gpus_per_node < self.devices_per_node:
            record = self.record()
            least = -(-record.world_size // cluster.gpus_per_node)
            raise refuse(
                f"{record.world_size} ranks on {self.nodes} node(s) take {self.devices_per_node} devices of each, and the "
                f"cluster's nodes have {cluster.gpus_per_node} (gpus_per_node); it takes at least {least} nodes",
                at=("nodes",),
            )
        return self

    @model_validator(mode="after")
    def _divides_over_nodes(self) -> Topology:
        """Each node has whole replicas, or each replica has whole nodes with as many ranks on each."""
        if self.replicas % self.nodes == 0:
            return self
        if self.nodes % self.replicas:
            legal = [n for n in range(1, 2 * self.nodes + 1) if n % self.nodes == 0 or self.nodes % n == 0]
            raise refuse(
                f"{self.replicas} replicas do not divide over {self.nodes} nodes, nor the nodes over the replicas; with "
                f"{self.nodes} nodes legal: {', '.join(map(str, legal))} and further multiples of {self.nodes}",
                at=("replicas",),
            )
        nodes = self.nodes // self.replicas
        ranks = self.record().replica_size
        if ranks % nodes:
            legal = [self.replicas * n for n in range(1, ranks + 1) if ranks % n == 0]
            raise refuse(
                f"tensor_parallel x pipeline_parallel x data_parallel = {ranks} ranks of a replica do not divide over its "
                f"{nodes} nodes; legal here: {', '.join(map(str, legal))}",
                at=("nodes",),
            )
        if self.executor == "mp" and self.data_parallel > 1 and self.data_parallel % nodes:
            raise refuse(
                f"with `mp` a replica of {nodes} nodes has whole engines on each, so {nodes} must divide it; write "
                "`executor: ray` to have vLLM place engines across nodes",
                at=("data_parallel",),
            )
        return self
