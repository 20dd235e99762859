"""How a deployment spreads over nodes and devices, as the configuration says it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from servemark import records
from servemark.config.cluster import Site
from servemark.config.field_types import refuse
from servemark.records import Strict

# The largest machines have some 50,000 accelerators in 10,000 nodes.
MAX_RANKS = 100_000
Size = Annotated[int, Field(strict=True, ge=1, le=10_000)]


def _replica_size(topology: dict[str, Any]) -> int:
    return int(topology["tensor_parallel"] * topology["pipeline_parallel"] * topology["data_parallel"])


def _executor(topology: dict[str, Any]) -> Literal["single", "mp"]:
    return "single" if _replica_size(topology) == 1 else "mp"


class Topology(Strict):
    """How a deployment spreads over devices."""

    nodes: Size = Field(
        default=1,
        description="nodes of the servers; more than 1 needs a `cluster`. Ranks are divided over them evenly: several "
        "whole replicas a node, or several whole nodes a replica",
    )
    tensor_parallel: Size = Field(default=1, description="tensor parallel size: ranks that share every layer")
    pipeline_parallel: Size = Field(default=1, description="pipeline parallel size: ranks that each hold some layers")
    data_parallel: Size = Field(
        default=1,
        description="data parallel size: engines of tensor_parallel x pipeline_parallel ranks behind one server; with "
        "`mp`, a replica of several nodes has whole engines on each",
    )
    replicas: Size = Field(default=1, description="servers of the same kind behind one address")
    balancing: Literal["server", "router"] = Field(
        default="server",
        description="who spreads requests over the data parallel engines of a server: `server`, vLLM itself, by what it last heard of "
        "their queues, which leaves some engines with more than others; or `router`, the router in front, one request to each engine "
        "in turn, which keeps them equal where requests are alike",
    )
    routing: Literal["round_robin", "least_requests"] = Field(
        default="round_robin",
        description="whom the router gives the next request: `round_robin`, each replica (or engine, with `balancing: router`) in turn; "
        "or `least_requests`, the one with the fewest in flight, which keeps them equal when a wave of requests ends in one before the "
        "other",
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

    # First: the others look for the numbers of nodes that the ranks divide over.
    @model_validator(mode="after")
    def _of_this_world(self) -> Topology:
        if (ranks := self.record().world_size) > MAX_RANKS:
            raise refuse(
                f"tensor_parallel x pipeline_parallel x data_parallel x replicas is {ranks:,} ranks; at most {MAX_RANKS:,} are possible"
            )
        return self

    @model_validator(mode="after")
    def _something_to_balance(self) -> Topology:
        if self.balancing == "router" and self.data_parallel == 1:
            raise refuse(
                "`router` spreads requests over data parallel engines, and data_parallel is 1; leave it out, or raise data_parallel",
                at=("balancing",),
            )
        return self

    @model_validator(mode="after")
    def _something_to_route(self) -> Topology:
        if self.routing != "round_robin" and not self.record().routed:
            raise refuse(
                f"`{self.routing}` is what a router does, and there is none before one server; leave it out, raise replicas, or give "
                "data parallel engines `balancing: router`",
                at=("routing",),
            )
        return self

    @model_validator(mode="after")
    def _within_reach(self, info: ValidationInfo) -> Topology:
        """With a cluster, or None, as validation context: whether it has such nodes."""
        context = info.context or {}
        if "cluster" not in context:
            return self
        cluster: Site | None = context["cluster"]
        if cluster is None:
            way_out = "needs a scheduler: run with --profile profiles/slurm, or write `cluster: NAME`"
            if self.nodes > 1:
                raise refuse(f"more than one node {way_out}", at=("nodes",))
            if self.client == "own":
                raise refuse(f"a node of its own for the client {way_out}", at=("client",))
        elif 0 < cluster.gpus_per_node < self.devices_per_node:
            raise refuse(
                f"{self.record().world_size} ranks on {self.nodes} node(s) take {self.devices_per_node} devices of each, and the "
                f"cluster's nodes have {cluster.gpus_per_node} (gpus_per_node); {self._legal_nodes(cluster.gpus_per_node)}",
                at=("nodes",),
            )
        return self

    @model_validator(mode="after")
    def _divides_over_nodes(self, info: ValidationInfo) -> Topology:
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
            raise refuse(
                f"tensor_parallel x pipeline_parallel x data_parallel = {ranks} ranks of a replica do not divide over its "
                f"{nodes} nodes; {self._legal_nodes(_gpus_per_node(info))}",
                at=("nodes",),
            )
        if not self._divides(self.nodes):
            placed = (
                "vLLM places engines over nodes only where as many are on each, or each has as many nodes"
                if self.executor == "ray"
                else f"with `mp` a replica of {nodes} nodes has whole engines on each"
            )
            ray = self.executor == "mp" and self.model_copy(update={"executor": "ray"})._divides(self.nodes)
            raise refuse(
                f"{placed}, so {self.data_parallel} engines do not divide over {nodes} nodes; {self._legal_nodes(_gpus_per_node(info))}"
                + ("; or write `executor: ray`, which has engines across nodes" if ray else ""),
                at=("data_parallel",),
            )
        return self

    def _divides(self, nodes: int) -> bool:
        """Whether vLLM can spread the ranks over so many nodes.

        Over Ray, engines of one node each are packed by node, as many on each, and engines of several nodes need each the same number of
        whole ones (vllm/v1/engine/utils.py, create_dp_placement_groups, 0.25.1 and 0.32.0).
        """
        if self.replicas % nodes == 0:
            return True
        each = nodes // self.replicas
        if nodes % self.replicas or self.record().replica_size % each:
            return False
        spans = self.executor == "ray" and each % self.data_parallel == 0
        return self.data_parallel == 1 or self.data_parallel % each == 0 or spans

    def _legal_nodes(self, gpus_per_node: int) -> str:
        """Which numbers of nodes the other sizes divide over, on nodes of so many devices (0: any number), in words."""
        ranks = self.record().world_size
        found = [n for n in range(1, ranks + 1) if self._divides(n) and ranks <= n * (gpus_per_node or ranks)]
        return (
            f"legal for `nodes` here: {', '.join(map(str, found))}"
            if found
            else "no number of nodes has them so: change the sizes"
        )


def _gpus_per_node(info: ValidationInfo) -> int:
    cluster: Site | None = (info.context or {}).get("cluster")
    return cluster.gpus_per_node if cluster else 0
