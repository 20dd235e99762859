"""How a deployment spreads over nodes and devices, as the configuration says it."""

from __future__ import annotations

from pydantic import ValidationInfo, model_validator

from servemark.config.cluster import Site
from servemark.config.field_types import refuse
from servemark.records import Topology
from servemark.records.topology import EXECUTORS, Shape

MAX_RANKS = 100_000


class AskedTopology(Shape):
    """How a deployment spreads over devices."""

    @property
    def devices_per_node(self) -> int:
        """Devices that the servers use on each of their nodes."""
        return -(-self.world_size // self.nodes)

    def record(self) -> Topology:
        """Return the topology as records and planning have it, with the devices that it takes of each node."""
        return Topology(**self.model_dump(), devices_per_node=self.devices_per_node)

    @model_validator(mode="after")
    def _ranks_fit(self) -> AskedTopology:
        if self.traits.one_rank and self.replica_size > 1:
            allowed = [name for name, traits in EXECUTORS.items() if not traits.one_rank]
            raise refuse(
                f"`{self.executor}` is {self.traits.label}, and tensor_parallel x pipeline_parallel x data_parallel is "
                f"{self.replica_size}; write `mp` or nothing",
                at=("executor",),
                allowed=allowed,
            )
        return self

    # Before those below, which look for the numbers of nodes that the ranks divide over.
    @model_validator(mode="after")
    def _of_this_world(self) -> AskedTopology:
        if (ranks := self.world_size) > MAX_RANKS:
            raise refuse(
                f"tensor_parallel x pipeline_parallel x data_parallel x replicas is {ranks:,} ranks; at most {MAX_RANKS:,} are possible"
            )
        return self

    @model_validator(mode="after")
    def _something_to_balance(self) -> AskedTopology:
        if self.balancing == "router" and self.data_parallel == 1:
            raise refuse(
                "`router` spreads requests over data parallel engines, and data_parallel is 1; leave it out, or raise data_parallel",
                at=("balancing",),
            )
        return self

    @model_validator(mode="after")
    def _something_to_route(self) -> AskedTopology:
        if self.routing != "round_robin" and not self.routed:
            raise refuse(
                f"`{self.routing}` is what a router does, and there is none before one server; leave it out, raise replicas, or give "
                "data parallel engines `balancing: router`",
                at=("routing",),
            )
        return self

    @model_validator(mode="after")
    def _within_reach(self, info: ValidationInfo) -> AskedTopology:
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
                f"{self.world_size} ranks on {self.nodes} node(s) take {self.devices_per_node} devices of each, and the "
                f"cluster's nodes have {cluster.gpus_per_node} (gpus_per_node); {self._legal_nodes(cluster.gpus_per_node)}",
                at=("nodes",),
            )
        return self

    @model_validator(mode="after")
    def _divides_over_nodes(self, info: ValidationInfo) -> AskedTopology:
        """Check that each node has whole replicas, or each replica whole nodes with as many ranks on each."""
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
        ranks = self.replica_size
        if ranks % nodes:
            raise refuse(
                f"tensor_parallel x pipeline_parallel x data_parallel = {ranks} ranks of a replica do not divide over its "
                f"{nodes} nodes; {self._legal_nodes(_gpus_per_node(info))}",
                at=("nodes",),
            )
        if not self._divides(self.nodes):
            placed = (
                "vLLM places engines over nodes only where as many are on each, or each has as many nodes"
                if self.traits.engines_span_nodes
                else f"with `{self.executor}` a replica of {nodes} nodes has whole engines on each"
            )
            others = [name for name in EXECUTORS if self.model_copy(update={"executor": name})._divides(self.nodes)]
            raise refuse(
                f"{placed}, so {self.data_parallel} engines do not divide over {nodes} nodes; {self._legal_nodes(_gpus_per_node(info))}"
                + (f"; or write `executor: {others[0]}`, which has engines across nodes" if others else ""),
                at=("data_parallel",),
            )
        return self

    def _divides(self, nodes: int) -> bool:
        """Return whether vLLM can spread the ranks over so many nodes.

        Over Ray, engines of one node each are packed by node, as many on each, and engines of several nodes need each the same number of
        whole ones (vllm/v1/engine/utils.py, create_dp_placement_groups, 0.25.1 and 0.32.0).
        """
        if self.replicas % nodes == 0:
            return True
        each = nodes // self.replicas
        if nodes % self.replicas or self.replica_size % each:
            return False
        spans = self.traits.engines_span_nodes and each % self.data_parallel == 0
        return self.data_parallel == 1 or self.data_parallel % each == 0 or spans

    def _legal_nodes(self, gpus_per_node: int) -> str:
        """Return which numbers of nodes the other sizes divide over, on nodes of so many devices (0: any number), in words."""
        ranks = self.world_size
        found = [n for n in range(1, ranks + 1) if self._divides(n) and ranks <= n * (gpus_per_node or ranks)]
        return f"legal for `nodes` here: {', '.join(map(str, found))}" if found else "no number of nodes has them so: change the sizes"


def _gpus_per_node(info: ValidationInfo) -> int:
    cluster: Site | None = (info.context or {}).get("cluster")
    return cluster.gpus_per_node if cluster else 0
